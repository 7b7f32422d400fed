"""The one error that bad input raises."""


class InvalidInput(ValueError):
    """An argument that refkern does not accept.

    The text names the argument, what was given and what is allowed.  When it is raised nothing has
    been computed and nothing has been written.
    """

    def __init__(self, argument: str, given: object, allowed: str) -> None:
        self.argument = argument
        super().__init__(f"{argument}: {given} was given; {allowed}")
