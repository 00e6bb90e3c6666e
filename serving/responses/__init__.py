"""`/v1/responses`: OpenAI's newer form of a conversation, as far as it is text. The server keeps no response.

a body ─► conversation.py: a body of /v1/chat/completions ─► chat.py ─► its answer, whole or in parts ─► answer.py
"""
