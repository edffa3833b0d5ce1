"""The commands of `pcaplake`, one file per command. They parse options, call other packages and show results."""
