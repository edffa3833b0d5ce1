"""Object stores and local disks behind one port, with conditional writes that are checked."""

from . import local_store as local_store  # both tell `Store.open` which URIs they open
from . import object_store as object_store
