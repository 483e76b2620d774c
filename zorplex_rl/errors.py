"""What a person can do wrong. The message is one sentence: what was wrong, what is expected, what to do."""


class ConfigError(ValueError):
    """A setting that cannot work."""


class PolicyError(ConfigError):
    """A policy that cannot be used."""


class SiteError(RuntimeError):
    """A notebook that cannot be published: a cell of it failed, or did not run."""
