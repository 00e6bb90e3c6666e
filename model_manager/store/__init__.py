"""A model's name, folder or gs:// address, and the verified local files it stands for."""
