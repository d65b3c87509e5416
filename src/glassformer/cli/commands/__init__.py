"""The commands of the command line: one module each, whose ``main`` takes its flags and returns the
exit status.
"""
