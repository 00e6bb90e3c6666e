"""`/v1/files`: files that clients upload, and that batches write. They go to a disk and come back in pieces.

a form's body ─► form.py ─► new file beside the others ─► (whole) ─► file_store.py ─► list, content, delete
"""
