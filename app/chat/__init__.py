"""Conversations, as all wire formats of chats have them in common."""
