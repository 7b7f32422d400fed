"""The one error that bad input raises."""


class InvalidInput(ValueError):
    """An argument that refkern does not accept.

    The text names the argument, what was given and what is allowed.  When it is raised nothing has
    been computed and nothing has been written.
    """

    def __init__(self, argument: str, given: object, allowed: str) -> None:
        # all three are kept as `args`, so that the error can be sent between processes
        super().__init__(argument, given, allowed)
        self.argument = argument

    def __str__(self) -> str:
        argument, given, allowed = self.args
        return f"{argument}: {given} was given; {allowed}"
