"""What crosses processes: messages, their transport, settings and errors."""
