// SPDX-License-Identifier: BSD-3-Clause
//
// The operators that programs are made of: some of every family of rules.
#include <cohort/torch/dtensor.h>

#include <cmath>
#include <stdexcept>

#include "torch/dtensor/programs/program.h"

namespace cohort::test::programs {

namespace {

using T = const at::Tensor&;
using X = const Tensors&;
using N = const Numbers&;

void require(bool fits) {
  if (!fits) throw Unfit();
}

/// A dimension, counted from either end.
std::int64_t dim_of(T x, std::int64_t number) {
  require(x.dim() > 0);
  return number % (2 * x.dim()) - x.dim();
}
/// One that is not negative.
std::int64_t plain_dim(T x, std::int64_t number) {
  const auto dim = dim_of(x, number);
  return dim < 0 ? dim + x.dim() : dim;
}

Operator unary(std::string name, std::function<at::Tensor(T)> f) {
  return {.name = std::move(name), .run = [=](X x, N) { return f(x[0]); }};
}
Operator numbered(std::string name, std::function<at::Tensor(T, N)> f) {
  return {.name = std::move(name), .run = [=](X x, N n) { return f(x[0], n); }};
}
Operator view(std::string name, std::function<at::Tensor(T, N)> f) {
  return {.name = std::move(name), .run = [=](X x, N n) { return f(x[0], n); }, .may_refuse = true};
}

/// The same sizes, or sizes that broadcast: leading dimensions missing, or dimensions of size 1.
std::vector<Wanted> broadcastable(const Sizes& first, Random& random) {
  auto sizes = first;
  if (random() % 3 == 0 && !sizes.empty()) {
    sizes.erase(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(random() % (sizes.size() + 1)));
  }
  for (auto& each : sizes) {
    if (random() % 5 == 0) each = 1;
  }
  return {{.sizes = std::move(sizes)}};
}
Operator binary(std::string name, std::function<at::Tensor(T, T)> f) {
  return {.name = std::move(name), .run = [=](X x, N) { return f(x[0], x[1]); }, .others = broadcastable};
}
/// A Partial cannot take everything.
Operator in_place(std::string name, std::function<at::Tensor(T, T)> f) {
  auto made = binary(std::move(name), std::move(f));
  made.may_refuse = true;
  return made;
}

std::int64_t small(Random& random) {
  return static_cast<std::int64_t>(random() % 6);
}

std::vector<Operator> pointwise() {
  return {
      unary("neg", [](T x) { return -x; }),
      unary("relu", [](T x) { return x.relu(); }),
      unary("gelu", [](T x) { return at::gelu(x); }),
      unary("tanh", [](T x) { return x.tanh(); }),
      unary("log_sigmoid", [](T x) { return at::log_sigmoid(x); }),
      unary("square", [](T x) { return x.square(); }),
      unary("abs", [](T x) { return x.abs(); }),
      unary("times", [](T x) { return x * 3 / 7.0; }),
      unary("plus", [](T x) { return x + 3; }),
      unary("clone", [](T x) { return x.clone(); }),
      unary("contiguous", [](T x) { return x.contiguous(); }),
      unary("clamp", [](T x) { return x.clamp(-1, 1); }),
      unary("through_integers", [](T x) { return (x.detach() * 3).to(at::kLong).to(at::kDouble); }),
      unary("masked_fill", [](T x) { return x.masked_fill(x > 0, 0.0); }),
      unary("likes", [](T x) { return x * at::ones_like(x) + at::zeros_like(x).fill_(2) + at::full_like(x, 3); }),
      binary("add", [](T a, T b) { return at::add(a, b, 3); }),
      binary("sub", [](T a, T b) { return a - b; }),
      binary("rsub", [](T a, T b) { return at::rsub(a, b, 2); }),
      binary("mul", [](T a, T b) { return a * b; }),
      binary("div", [](T a, T b) { return a / (b * b + 1); }),
      binary("maximum", [](T a, T b) { return at::maximum(a, b); }),
      binary("where", [](T a, T b) { return at::where(a > b, a, b * 2); }),
      in_place("add_in_place", [](T a, T b) { return (a * 1).add_(b, 3); }),
      in_place("mul_in_place", [](T a, T b) { return (a * 1).mul_(b); }),
      in_place("copy_in_place", [](T a, T b) { return a.clone().copy_(b); }),
      binary("lerp", [](T a, T b) { return at::lerp(a, a * 1 + b, 0.25); }),
      binary("addcmul", [](T a, T b) { return at::addcmul(a, b, b, 0.5); }),
  };
}

std::vector<Operator> products() {
  const auto matrix = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
    require(first.size() == 2);
    return {{.sizes = {first[1], small(random)}}};
  };
  const auto batch = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
    require(first.size() == 3);
    return {{.sizes = {first[0], first[2], small(random)}}};
  };
  const auto linear = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
    require(!first.empty());
    const auto outputs = small(random);
    return {{.sizes = {outputs, first.back()}}, {.sizes = {outputs}}};
  };
  const auto last = [](const Sizes& first, Random&) -> std::vector<Wanted> {
    require(!first.empty());
    return {{.sizes = {first.back()}}};
  };
  return {
      {.name = "mm", .run = [](X x, N) { return x[0].mm(x[1]); }, .others = matrix},
      {.name = "mm_transposed", .run = [](X x, N) { return x[1].t().mm(x[0].t()); }, .others = matrix},
      {.name = "bmm", .run = [](X x, N) { return x[0].bmm(x[1]); }, .others = batch},
      {.name = "baddbmm",
       .run = [](X x, N) { return at::baddbmm(x[2], x[0], x[1], 2, 3); },
       .others =
           [=](const Sizes& first, Random& random) {
             auto all = batch(first, random);
             all.push_back({.sizes = {first[0], first[1], all[0].sizes[2]}});
             return all;
           }},
      {.name = "addmm",
       .run = [](X x, N) { return at::addmm(x[2], x[0], x[1], 2, 3); },
       .others =
           [=](const Sizes& first, Random& random) {
             auto all = matrix(first, random);
             all.push_back({.sizes = {all[0].sizes[1]}});
             return all;
           }},
      {.name = "linear", .run = [](X x, N) { return at::linear(x[0], x[1], x[2]); }, .others = linear},
      {.name = "matmul", .run = [](X x, N) { return x[0].matmul(x[1].t()) + x[2]; }, .others = linear},
      {.name = "mv",
       .run =
           [](X x, N) {
             require(x[0].dim() == 2);
             return x[0].mv(x[1]);
           },
       .others = last},
      {.name = "dot",
       .run =
           [](X x, N) {
             require(x[0].dim() == 1);
             return x[0].dot(x[1]);
           },
       .others = last},
  };
}

std::vector<Operator> reductions() {
  return {
      unary("sum", [](T x) { return x.sum(); }),
      unary("mean", [](T x) { return x.mean(); }),
      unary("max", [](T x) { return x.max(); }),
      unary("min", [](T x) { return x.min(); }),
      unary("prod", [](T x) { return x.detach().prod(); }),
      numbered("sum_dim", [](T x, N n) { return x.sum(x.dim() == 0 ? 0 : dim_of(x, n[0]), n[1] % 2 == 0); }),
      numbered("sum_dims",
               [](T x, N n) {
                 require(x.dim() > 1);
                 return x.sum(at::IntArrayRef({0, plain_dim(x, n[0]) % (x.dim() - 1) + 1}), n[1] % 2 == 0);
               }),
      numbered("mean_dim", [](T x, N n) { return x.mean(dim_of(x, n[0]), n[1] % 2 == 0); }),
      numbered("amax", [](T x, N n) { return x.amax(dim_of(x, n[0]), n[1] % 2 == 0); }),
      numbered("amin", [](T x, N n) { return x.amin(dim_of(x, n[0]), n[1] % 2 == 0); }),
      numbered("max_dim", [](T x, N n) { return std::get<0>(x.detach().max(dim_of(x, n[0]), n[1] % 2 == 0)); }),
      numbered("argmax", [](T x, N n) { return x.detach().argmax(dim_of(x, n[0]), n[1] % 2 == 0).to(at::kDouble); }),
      numbered("logsumexp", [](T x, N n) { return x.logsumexp(dim_of(x, n[0]), n[1] % 2 == 0); }),
      numbered("cumsum", [](T x, N n) { return x.cumsum(dim_of(x, n[0])); }),
      numbered("norm",
               [](T x, N n) {
                 const double orders[] = {2, 1, 3, INFINITY};
                 return at::linalg_vector_norm(x * 1, orders[static_cast<std::size_t>(n[2] % 4)],
                                               at::IntArrayRef({dim_of(x, n[0])}), n[1] % 2 == 0);
               }),
      numbered("norm_without_gradient",
               [](T x, N n) {
                 const double orders[] = {0, -1, 0.5, -INFINITY};
                 return at::linalg_vector_norm(x.detach(), orders[static_cast<std::size_t>(n[2] % 4)],
                                               at::IntArrayRef({dim_of(x, n[0])}), n[1] % 2 == 0);
               }),
      unary("any_positive", [](T x) { return (x.detach() > 1).any().to(at::kDouble); }),
  };
}

std::vector<Operator> views() {
  return {
      view("t",
           [](T x, N) {
             require(x.dim() <= 2);
             return x.t();
           }),
      view("transpose", [](T x, N n) { return x.transpose(dim_of(x, n[0]), dim_of(x, n[1])); }),
      view("permute",
           [](T x, N n) {
             require(x.dim() == 3);
             return n[0] % 2 == 0 ? x.permute({2, 0, 1}) : x.permute({-2, -1, 0});
           }),
      view("unsqueeze", [](T x, N n) { return x.unsqueeze(n[0] % (x.dim() + 1)); }),
      view("squeeze_dim", [](T x, N n) { return x.squeeze(dim_of(x, n[0])); }),
      view("squeeze", [](T x, N) { return x.squeeze(); }),
      view("expand",
           [](T x, N n) {
             auto sizes = x.sizes().vec();
             for (auto& each : sizes) each = each == 1 ? n[0] % 4 : each;
             if (n[1] % 2 == 0) sizes.insert(sizes.begin(), 1 + n[2] % 3);
             return x.expand(sizes);
           }),
      {.name = "flatten", .run = [](X x, N) { return x[0].flatten(); }},
      {.name = "reshape_rows",
       .run =
           [](X x, N) {
             require(x[0].dim() > 0 && x[0].numel() > 0);
             return x[0].reshape({-1, x[0].size(-1)});
           }},
      {.name = "view_merged",
       .run =
           [](X x, N n) {
             require(x[0].dim() > 1);
             const auto dim = plain_dim(x[0], n[0]) % (x[0].dim() - 1);
             auto sizes = x[0].sizes().vec();
             sizes[static_cast<std::size_t>(dim)] *= sizes[static_cast<std::size_t>(dim) + 1];
             sizes.erase(sizes.begin() + dim + 1);
             return x[0].view(sizes);
           }},
      {.name = "view_divided",
       .run =
           [](X x, N n) {
             const auto dim = plain_dim(x[0], n[0]);
             const auto factor = 1 + n[1] % 3;
             require(x[0].size(dim) % factor == 0);
             auto sizes = x[0].sizes().vec();
             sizes[static_cast<std::size_t>(dim)] /= factor;
             sizes.insert(sizes.begin() + dim + n[2] % 2, factor);
             return x[0].view(sizes);
           }},
      view("slice",
           [](T x, N n) {
             const auto dim = dim_of(x, n[0]);
             return x.slice(dim, n[1] % 3, n[2] % 2 == 0 ? x.size(dim) : x.size(dim) - 1, 1 + n[3] % 2);
           }),
      view("select",
           [](T x, N n) {
             const auto dim = dim_of(x, n[0]);
             require(x.size(dim) > 0);
             return x.select(dim, n[1] % x.size(dim));
           }),
      view("chunk",
           [](T x, N n) {
             const auto dim = dim_of(x, n[0]);
             require(x.size(dim) > 0 && x.size(dim) % 2 == 0);
             const auto halves = x.chunk(2, dim);
             return halves[0] * halves[1];
           }),
      {.name = "view_of_contiguous", .run = [](X x, N) { return x[0].transpose(0, -1).contiguous().view({-1}); }},
      {.name = "view_of_expanded",
       .run =
           [](X x, N n) {
             auto sizes = x[0].sizes().vec();
             sizes.insert(sizes.begin(), 1 + n[0] % 3);
             return (x[0].expand(sizes) * 2).view({-1});
           }},
      view("unbind",
           [](T x, N n) {
             const auto parts = x.unbind(dim_of(x, n[0]));
             require(!parts.empty());
             return parts.front() * 2 - parts.back();
           }),
      view("split",
           [](T x, N n) {
             const auto parts = x.split(1 + n[1] % 3, dim_of(x, n[0]));
             return parts.back() * 2;
           }),
  };
}

std::vector<Operator> layers() {
  const auto affine = [](const Sizes& first, Random&) -> std::vector<Wanted> {
    require(!first.empty());
    return {{.sizes = {first.back()}}, {.sizes = {first.back()}}};
  };
  const auto targets = [](const Sizes& first, Random&) -> std::vector<Wanted> {
    require(first.size() == 2 && first[1] > 0);
    return {{.sizes = {first[0]}, .below = first[1]}};
  };
  return {
      numbered("softmax", [](T x, N n) { return x.softmax(x.dim() == 0 ? 0 : dim_of(x, n[0])); }),
      numbered("log_softmax", [](T x, N n) { return x.log_softmax(dim_of(x, n[0])); }),
      {.name = "layer_norm",
       .run = [](X x, N) { return at::layer_norm(x[0], {x[0].size(-1)}, x[1], x[2], 0.1); },
       .others = affine},
      {.name = "embedding",
       .run =
           [](X x, N n) {
             require(x[0].dim() == 2 && x[1].scalar_type() == at::kLong);
             return at::embedding(x[0], x[1], n[0] % 2 == 0 ? -1 : 0);
           },
       .others = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
         require(first.size() == 2 && first[0] > 0);
         Sizes sizes(random() % 3);
         for (auto& each : sizes) each = small(random);
         return {{.sizes = std::move(sizes), .below = first[0]}};
       }},
      {.name = "cross_entropy",
       .run =
           [](X x, N n) {
             require(x[0].dim() == 2 && x[1].scalar_type() == at::kLong);
             return at::cross_entropy_loss(x[0], x[1], {}, n[0] % 3, n[1] % 2 == 0 ? -100 : 0);
           },
       .others = targets},
      {.name = "mse_loss",
       .run = [](X x, N n) { return at::mse_loss(x[0], x[1], n[0] % 3); },
       .others = [](const Sizes& first, Random&) -> std::vector<Wanted> { return {{.sizes = first}}; }},
      {.name = "conv2d",
       .run =
           [](X x, N) {
             require(x[0].dim() == 4);
             return at::conv2d(x[0], x[1], x[2]);
           },
       .others = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
         require(first.size() == 4);
         const auto outputs = 1 + small(random) % 3;
         return {{.sizes = {outputs, first[1], 2, 2}}, {.sizes = {outputs}}};
       }},
      unary("max_pool2d",
            [](T x) {
              require(x.dim() == 4);
              return at::max_pool2d(x, {2, 2});
            }),
      unary("avg_pool2d",
            [](T x) {
              require(x.dim() == 4);
              return at::avg_pool2d(x, {2, 2});
            }),
  };
}

std::vector<Operator> indexing() {
  return {
      {.name = "cat",
       .run =
           [](X x, N n) {
             // libtorch gives these a plain gradient: they count as nothing, of any number of dimensions.
             require(x[0].sizes() != at::IntArrayRef({0}));
             return at::cat({x[0], x[1]}, dim_of(x[0], n[0]));
           },
       .others = [](const Sizes& first, Random&) -> std::vector<Wanted> { return {{.sizes = first}}; }},
      {.name = "stack",
       .run =
           [](X x, N n) {
             return at::stack({x[0], x[1]}, n[0] % (x[0].dim() + 1));
           },
       .others = [](const Sizes& first, Random&) -> std::vector<Wanted> { return {{.sizes = first}}; }},
      {.name = "gather",
       .run =
           [](X x, N) {
             require(x[1].scalar_type() == at::kLong);
             return x[0].gather(-1, x[1]);
           },
       .others = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
         require(!first.empty() && first.back() > 0);
         auto sizes = first;
         sizes.back() = small(random);
         return {{.sizes = std::move(sizes), .below = first.back()}};
       }},
      {.name = "index_select",
       .run =
           [](X x, N) {
             require(x[1].scalar_type() == at::kLong);
             return x[0].index_select(0, x[1]);
           },
       .others = [](const Sizes& first, Random& random) -> std::vector<Wanted> {
         require(!first.empty() && first[0] > 0);
         return {{.sizes = {small(random)}, .below = first[0]}};
       }},
      numbered("flip", [](T x, N n) { return x.flip({dim_of(x, n[0])}); }),
      unary("tril", [](T x) { return x.tril(); }),
      unary("triu", [](T x) { return x.triu(1); }),
  };
}

/// Out of distributed tensors and back. Every rank's use of a summand has the gradient of the sum.
at::Tensor through_local(T x) {
  if (!is_dtensor(x)) return x * 1;
  const DTensor tensor(x);
  auto gradient = tensor.placements();
  for (auto& each : gradient) {
    if (each.is_partial()) each = Replicate();
  }
  const auto local = tensor.to_local({.grad_placements = std::move(gradient)}) * 1;
  return DTensor::from_local(local, tensor.device_mesh(), tensor.placements(),
                             {.sizes = tensor.sizes().vec(), .strides = tensor.strides().vec()});
}

at::Tensor wrong_if_sharded(X x, N) {
  return x[0] * (is_dtensor(x[0]) && DTensor(x[0]).placements()[0].is_shard() ? 2 : 1);
}

at::Tensor throws_on_rank_1(X x, N) {
  if (is_dtensor(x[0]) && DTensor(x[0]).device_mesh().rank() == 1) throw std::runtime_error("thrown by the operator");
  return x[0] * 1;
}

}  // namespace

const std::vector<Operator>& operators() {
  static const std::vector<Operator> all = [] {
    std::vector<Operator> list;
    for (auto& family : {pointwise(), products(), reductions(), views(), layers(), indexing()}) {
      list.insert(list.end(), family.begin(), family.end());
    }
    list.push_back(unary("through_local", through_local));
    list.push_back({.name = "wrong_if_sharded", .run = wrong_if_sharded, .is_wrong = true});
    list.push_back({.name = "throws_on_rank_1", .run = throws_on_rank_1, .is_wrong = true});
    return list;
  }();
  return all;
}

}  // namespace cohort::test::programs
