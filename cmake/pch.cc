// Owner of the precompiled headers (cmake/farsight.cmake); holds no code.
