# Ranks are threads and processes, more than there are processors, and ctest runs several tests at a time: a rank that
# started a thread for each processor would wait for the others' most of the time.
foreach(library OMP OPENBLAS MKL)
  set(ENV{${library}_NUM_THREADS} 1)
endforeach()
