// SPDX-License-Identifier: BSD-3-Clause
//
// Calls that must not compile, one for each CASE; without CASE, their neighbours that must.
#include <cohort/process_group.h>

#include <memory>
#include <string>
#include <vector>

struct Point {
  float x, y;
};
struct Named {
  std::string name;
};

void calls(cohort::ProcessGroup& pg, std::vector<Point>& points, std::vector<Named>& named, std::vector<float>& numbers,
           const std::vector<float>& constant, std::vector<std::string>& texts,
           std::vector<std::unique_ptr<int>>& pointers, float single) {
#ifndef CASE
  pg.broadcast(points);
  pg.all_gather(points, points);
  pg.all_reduce(numbers);
  pg.send(constant, 1);
  pg.all_reduce(std::span(&single, 1));
  const cohort::Reduction<Point> farthest("farthest", [](Point& so_far, const Point& next) {
    if (next.x > so_far.x) so_far = next;
  });
  pg.all_reduce(points, {.op = farthest});
  static_cast<void>(named.size() + texts.size() + pointers.size());
#elif CASE == 1
  pg.all_reduce(points);
#elif CASE == 2
  pg.reduce(points);
#elif CASE == 3
  pg.reduce_scatter(points, points);
#elif CASE == 4
  pg.broadcast(named);
#elif CASE == 5
  pg.all_gather(named, named);
#elif CASE == 6
  pg.send(pointers, 1, {.tag = 3});
#elif CASE == 7
  pg.broadcast(texts, {.root = 1});
#elif CASE == 8
  pg.all_reduce(single, {.op = cohort::ReduceOp::max()});
#elif CASE == 9
  pg.recv(constant, 0);
#elif CASE == 10
  pg.all_reduce(std::vector<float>(3));
#elif CASE == 11
  const cohort::Reduction<Named> longest("longest", [](Named&, const Named&) {});
#endif
}
