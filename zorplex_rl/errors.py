"""What a person can do wrong. The message is one sentence: what was wrong, what is expected, what to do."""


class ConfigError(ValueError):
    """A setting that cannot work."""


class PolicyError(ConfigError):
    """A policy that cannot be used."""
