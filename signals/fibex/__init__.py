"""FIBEX (ASAM MCD-2 NET) 3 and 4: the services of SOME/IP, and the frames and PDUs of FlexRay, CAN and Ethernet."""
