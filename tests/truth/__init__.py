"""Long checks of what the documentation promises, a command each: they print what differs and exit with 1 if anything
does. The tests run short ones of the same.
"""
