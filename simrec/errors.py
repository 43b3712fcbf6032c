"""The one exception SimRec raises for input it cannot use."""


class InputError(ValueError):
    """Input that cannot be used as given.

    The message names what was received, what was expected and how to mend it; the command line
    prints it as it is and exits with code 2.
    """
