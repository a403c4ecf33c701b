"""Chats in any wire format: messages, tools, chat templates and prompts."""
