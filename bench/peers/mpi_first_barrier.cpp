// SPDX-License-Identifier: BSD-3-Clause
//
// What first_barrier.cpp does, with MPI: mpirun -n N mpi_first_barrier FOLDER
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iomanip>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2 || MPI_Init(&argc, &argv) != MPI_SUCCESS || MPI_Barrier(MPI_COMM_WORLD) != MPI_SUCCESS) return 1;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now().time_since_epoch();
  std::ofstream(std::string(argv[1]) + "/" + std::to_string(::getpid()))
      << std::fixed << std::setprecision(9) << passed.count() << "\n";
  MPI_Finalize();
  return 0;
}
