"""What can go wrong, for people. The message is one sentence: what was wrong, what is expected,
what to do."""


class ConfigError(ValueError):
    """A setting that cannot work."""


class PolicyError(ConfigError):
    """A policy that cannot be used."""


class TaskError(ConfigError):
    """A task of the user (``--task FILE:CLASS``) that cannot be used, or that failed. The message
    says where."""


class SiteError(RuntimeError):
    """A notebook that cannot be published: a cell of it failed, or did not run."""


class TrainingDiverged(ArithmeticError):
    """A loss, a gradient or the weights of a run are infinite or no numbers any more. The message
    says in which step which of them."""


class StorageError(RuntimeError):
    """A run's folder that can no longer be written: the disk is full, or gone."""


class CheckpointError(RuntimeError):
    """A checkpoint that is not what was written. The message says what is wrong with it."""


class HostError(RuntimeError):
    """A host that does not answer, has another version of the package, or is lost; or no host that
    is left."""
