"""CPU inference: one session, parallel sessions, and the native kernels that they load."""
