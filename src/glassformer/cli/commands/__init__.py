"""Commands of the command line: one module each, whose ``main`` takes its flags.

``main`` returns the exit status.
"""
