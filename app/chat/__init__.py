"""Chats, common to all wire formats: messages, tools, chat template, prompt."""
