"""Tables that are made from other tables of a lake."""
