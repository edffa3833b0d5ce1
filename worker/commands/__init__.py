"""What each command of `pcaplake` does, one file per command. They parse, call and show; they decide nothing."""
