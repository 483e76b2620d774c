"""The distributed system: actors, the loops that drive them, and the one place that configures
Monarch. Nothing else imports monarch."""
