"""The service `pcaplake run`: messages of the queue in, captures staged, messages deleted."""
