"""Chats in any wire format: messages, tools, chat template, prompt."""
