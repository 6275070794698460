"""Everything that can go wrong on purpose, shaped by what the caller can do about it."""

NO_MEMORY = "not enough memory; give this process more, or read a shorter time at once"


class RankmonError(Exception):
    """Base of all errors with a message meant for a person: what, where, and the remedy."""


class ConfigError(RankmonError):
    """The configuration is wrong; nothing was started. `problems` holds one text per mistake."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class InputError(RankmonError):
    """A file or argument given on the command line is wrong; giving another one helps."""


class SourceError(RankmonError):
    """The user's database did not answer as it must. Trying again later may help.

    `reason` is a short fixed word for the failure counter: `connect`, `timeout`, `permission`,
    `missing`, `driver`, `resources`, `query` or `data`. `lasting`: the statement itself cannot be served, and will not
    be before something changes.
    """

    def __init__(self, message: str, reason: str = "query", lasting: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.lasting = lasting

    @property
    def may_pass(self) -> bool:
        """Whether it is an outage, which somebody ends elsewhere."""
        return self.reason == "connect"


class StoreError(RankmonError):
    """rankmon's own database is out of reach, or not at the schema that this version needs.

    `may_pass`: it is an outage, which somebody ends elsewhere.
    """

    def __init__(self, message: str, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class StoreLocked(StoreError):
    """Another process holds what was to be written locked, frozen perhaps; trying again later may help."""


class LeaseLost(RankmonError):
    """Another process writes this monitor; this one steps aside and writes nothing."""


class ClockError(RankmonError):
    """This machine's clock is wrong, by what is stored or by a database's clock; nothing was read or judged."""


class Undelivered(RankmonError):
    """A receiver did not take a notification; trying again later may help. The text holds no secret.

    Attributes:
        wait: seconds that it asked to be left alone for; 0 if it did not.
    """

    def __init__(self, text: str, wait: float = 0.0) -> None:
        super().__init__(text)
        self.wait = wait


class Unserved(RankmonError):
    """Nothing can be served at the address, for another process has it perhaps; trying again later may help."""


class Stopped(RankmonError):
    """The process was asked to end; the chunk under way was left out whole."""


class TooMany(RankmonError):
    """An answer is larger than what is held in memory at once; a shorter time range is to be read."""
