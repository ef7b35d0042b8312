// SPDX-License-Identifier: BSD-3-Clause
//
// The engine interface on a real MPI. This file is compiled once for each MPI library that is installed.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "backends/mpi/engine_interface.h"
#include "core/immortal.h"

namespace cohort::mpi {
namespace {

std::string error_text(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) return "error " + std::to_string(code);
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw std::runtime_error(std::string(call) + ": " + error_text(code));
}

/// Handles are pointers in one MPI and integers in another.
template <class Ours, class Theirs>
Ours wrap(Theirs handle) {
  constexpr auto size = sizeof(Theirs);  // NOLINT(bugprone-sizeof-expression): of the handle, not of what it names
  static_assert(size <= sizeof(Ours));
  std::uint64_t bits = 0;
  std::memcpy(&bits, &handle, size);
  return static_cast<Ours>(bits);
}
template <class Theirs, class Ours>
Theirs unwrap(Ours ours) {
  const auto bits = static_cast<std::uint64_t>(ours);
  Theirs handle;
  std::memcpy(&handle, &bits, sizeof(Theirs));  // NOLINT(bugprone-sizeof-expression): as above
  return handle;
}

/// The size of a message that has been found.
std::size_t bytes_of(const MPI_Status& status) {
  MPI_Count bytes = 0;
#if MPI_VERSION >= 4
  check(MPI_Get_elements_c(&status, MPI_BYTE, &bytes), "MPI_Get_elements_c");
#else
  check(MPI_Get_elements_x(&status, MPI_BYTE, &bytes), "MPI_Get_elements_x");  // deprecated since MPI 4.1
#endif
  return static_cast<std::size_t>(bytes);
}

MPI_Comm comm_of(Communicator on) {
  return unwrap<MPI_Comm>(on);
}

MPI_Datatype type_of(Element element) {
  switch (element) {
    case Element::f32:
      return MPI_FLOAT;
    case Element::f64:
      return MPI_DOUBLE;
    case Element::i8:
      return MPI_INT8_T;
    case Element::u8:
      return MPI_UINT8_T;
    case Element::i16:
      return MPI_INT16_T;
    case Element::i32:
      return MPI_INT32_T;
    case Element::i64:
      return MPI_INT64_T;
  }
  return MPI_DATATYPE_NULL;
}

/// MPI calls an operation without saying which one it is, so each has a function of its own, by its place in this
/// table.
constexpr std::size_t own_ops = 40;
std::array<Combine, own_ops> combines{};

template <std::size_t Place>
void call_combine(void* in, void* inout, int* elements, MPI_Datatype* /*type*/) {
  combines[Place](in, inout, static_cast<std::size_t>(*elements));
}
template <std::size_t... Places>
constexpr std::array<MPI_User_function*, own_ops> make_callers(std::index_sequence<Places...> /*places*/) {
  return {&call_combine<Places>...};
}
constexpr auto callers = make_callers(std::make_index_sequence<own_ops>());

/// A datatype and count for a number of bytes that may exceed an int.
class LongType {
 public:
  explicit LongType(std::size_t bytes) {
    if (bytes <= INT_MAX) {
      count_ = static_cast<int>(bytes);
      return;
    }
    constexpr std::size_t unit = std::size_t{1} << 30U;
    MPI_Datatype unit_type = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(static_cast<int>(unit), MPI_BYTE, &unit_type), "MPI_Type_contiguous");
    std::array<int, 2> lengths{static_cast<int>(bytes / unit), static_cast<int>(bytes % unit)};
    std::array<MPI_Aint, 2> places{0, static_cast<MPI_Aint>(bytes / unit * unit)};
    std::array<MPI_Datatype, 2> types{unit_type, MPI_BYTE};
    const int made = MPI_Type_create_struct(2, lengths.data(), places.data(), types.data(), &type_);
    MPI_Type_free(&unit_type);
    check(made, "MPI_Type_create_struct");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~LongType() {
    // Operations that were started with it go on: MPI counts references.
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }
  LongType(const LongType&) = delete;
  LongType& operator=(const LongType&) = delete;

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
};

/// One side of an all_to_all: offsets from the first byte if they fit into an int, absolute addresses otherwise.
struct Side {
  const void* base = nullptr;
  std::vector<int> counts{};
  std::vector<int> distances{};
  std::vector<MPI_Datatype> types{};

  explicit Side(std::span<const Piece> pieces)
      : counts(pieces.size(), 0), distances(pieces.size(), 0), types(pieces.size(), MPI_BYTE) {
    std::uintptr_t low = UINTPTR_MAX;
    std::uintptr_t high = 0;
    for (const auto& piece : pieces) {
      if (piece.bytes == 0) continue;
      const auto begin = reinterpret_cast<std::uintptr_t>(piece.data);
      if (begin < low) base = piece.data;
      low = std::min(low, begin);
      high = std::max(high, begin + piece.bytes);
    }
    if (high == 0) return;
    if (high - low <= INT_MAX) {
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        if (pieces[i].bytes == 0) continue;
        counts[i] = static_cast<int>(pieces[i].bytes);
        distances[i] = static_cast<int>(reinterpret_cast<std::uintptr_t>(pieces[i].data) - low);
      }
      return;
    }
    base = MPI_BOTTOM;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (pieces[i].bytes > 0) add_absolute(i, pieces[i]);
    }
  }
  ~Side() {
    for (auto& type : types) {
      if (type != MPI_BYTE) MPI_Type_free(&type);
    }
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

 private:
  void add_absolute(std::size_t i, const Piece& piece) {
    const LongType bytes(piece.bytes);
    MPI_Aint address = 0;
    check(MPI_Get_address(piece.data, &address), "MPI_Get_address");
    const int count = bytes.count();
    check(MPI_Type_create_hindexed(1, &count, &address, bytes.type(), &types[i]), "MPI_Type_create_hindexed");
    check(MPI_Type_commit(&types[i]), "MPI_Type_commit");
    counts[i] = 1;
  }
};

struct BothSides {
  BothSides(std::span<const Piece> ins, std::span<const Piece> outs) : in(ins), out(outs) {}
  Side in;
  Side out;
};

struct Layout {
  std::vector<int> counts{};
  std::vector<int> places{};
};

ThreadLevel level_of(int level) {
  if (level == MPI_THREAD_MULTIPLE) return ThreadLevel::multiple;
  if (level == MPI_THREAD_SERIALIZED) return ThreadLevel::serialized;
  return level == MPI_THREAD_FUNNELED ? ThreadLevel::funneled : ThreadLevel::single;
}

class RealLibrary final : public Library {
 public:
  std::string version() override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
    const std::string all(text.data(), static_cast<std::size_t>(length));
    return all.substr(0, all.find('\n'));
  }
  bool is_initialized() override {
    int flag = 0;
    check(MPI_Initialized(&flag), "MPI_Initialized");
    return flag != 0;
  }
  bool is_finalized() override {
    int flag = 0;
    check(MPI_Finalized(&flag), "MPI_Finalized");
    return flag != 0;
  }
  ThreadLevel initialize() override {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    // By default an error ends the process. If the program initialised MPI, that is for the program to decide.
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return level_of(provided);
  }
  ThreadLevel thread_level() override {
    int provided = MPI_THREAD_SINGLE;
    check(MPI_Query_thread(&provided), "MPI_Query_thread");
    return level_of(provided);
  }
  void finalize() override { check(MPI_Finalize(), "MPI_Finalize"); }

  int world_rank() override {
    int rank = 0;
    check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    return rank;
  }
  int world_size() override {
    int size = 0;
    check(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    return size;
  }
  int largest_tag() override {
    void* value = nullptr;
    int is_set = 0;
    check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &value, &is_set), "MPI_Comm_get_attr");
    return is_set != 0 ? *static_cast<const int*>(value) : 32767;
  }

  Communicator create_communicator(std::span<const int> world_ranks, int tag) override {
    MPI_Group world = MPI_GROUP_NULL;
    check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
    MPI_Group members = MPI_GROUP_NULL;
    const int chosen = MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members);
    MPI_Group_free(&world);
    check(chosen, "MPI_Group_incl");
    MPI_Comm made = MPI_COMM_NULL;
    const int created = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &made);
    MPI_Group_free(&members);
    check(created, "MPI_Comm_create_group");
    check(MPI_Comm_set_errhandler(made, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    return wrap<Communicator>(made);
  }
  void free_communicator(Communicator communicator) override {
    auto comm = comm_of(communicator);
    check(MPI_Comm_free(&comm), "MPI_Comm_free");
  }
  Op create_op(Combine combine) override {
    const std::lock_guard lock(mutex_);
    if (used_ == own_ops) throw std::runtime_error("no room for another operation");
    combines[used_] = combine;
    check(MPI_Op_create(callers[used_], 1, &ops_[used_]), "MPI_Op_create");
    return static_cast<Op>(static_cast<int>(Op::first_own) + static_cast<int>(used_++));
  }

  Request all_reduce(const void* in, void* out, int count, Element element, Op op, Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallreduce(or_in_place(in), out, count, type_of(element), op_of(op), comm_of(on), &request),
          "MPI_Iallreduce");
    return wrap<Request>(request);
  }
  Request reduce(const void* in, void* out, int count, Element element, Op op, int root, Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ireduce(or_in_place(in), out, count, type_of(element), op_of(op), root, comm_of(on), &request),
          "MPI_Ireduce");
    return wrap<Request>(request);
  }
  Request broadcast(void* data, int bytes, int root, Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibcast(data, bytes, MPI_BYTE, root, comm_of(on), &request), "MPI_Ibcast");
    return wrap<Request>(request);
  }
  Request all_gather(void* data, int bytes_each, Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, data, bytes_each, MPI_BYTE, comm_of(on), &request),
          "MPI_Iallgather");
    return wrap<Request>(request);
  }
  Started all_gather_uneven(void* data, std::span<const int> bytes, Communicator on) override {
    auto layout = std::make_shared<Layout>();
    layout->counts.assign(bytes.begin(), bytes.end());
    int place = 0;
    for (const int each : bytes) {
      layout->places.push_back(place);
      place += each;
    }
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, layout->counts.data(), layout->places.data(), MPI_BYTE,
                          comm_of(on), &request),
          "MPI_Iallgatherv");
    return {.request = wrap<Request>(request), .kept = std::move(layout)};
  }
  Started reduce_scatter(const void* in, void* out, std::span<const int> counts, Element element, Op op,
                         Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    if (std::equal(counts.begin() + 1, counts.end(), counts.begin())) {
      check(MPI_Ireduce_scatter_block(in, out, counts.front(), type_of(element), op_of(op), comm_of(on), &request),
            "MPI_Ireduce_scatter_block");
      return {.request = wrap<Request>(request)};
    }
    auto layout = std::make_shared<Layout>();
    layout->counts.assign(counts.begin(), counts.end());
    check(MPI_Ireduce_scatter(in, out, layout->counts.data(), type_of(element), op_of(op), comm_of(on), &request),
          "MPI_Ireduce_scatter");
    return {.request = wrap<Request>(request), .kept = std::move(layout)};
  }
  Started all_to_all(std::span<const Piece> ins, std::span<const Piece> outs, Communicator on) override {
    auto sides = std::make_shared<BothSides>(ins, outs);
    MPI_Request request = MPI_REQUEST_NULL;
    const auto& in = sides->in;
    const auto& out = sides->out;
    check(MPI_Ialltoallw(in.base, in.counts.data(), in.distances.data(), in.types.data(), const_cast<void*>(out.base),
                         out.counts.data(), out.distances.data(), out.types.data(), comm_of(on), &request),
          "MPI_Ialltoallw");
    return {.request = wrap<Request>(request), .kept = std::move(sides)};
  }
  Request barrier(Communicator on) override {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(comm_of(on), &request), "MPI_Ibarrier");
    return wrap<Request>(request);
  }

  Request send(const void* data, std::size_t bytes, int peer, int tag, Communicator on) override {
    const LongType type(bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(data, type.count(), type.type(), peer, tag, comm_of(on), &request), "MPI_Isend");
    return wrap<Request>(request);
  }
  std::optional<Found> find(int peer, int tag, Communicator on) override {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    int is_there = 0;
    check(MPI_Improbe(peer < 0 ? MPI_ANY_SOURCE : peer, tag, comm_of(on), &is_there, &message, &status), "MPI_Improbe");
    if (is_there == 0) return std::nullopt;
    return Found{.message = wrap<Message>(message), .source = status.MPI_SOURCE, .bytes = bytes_of(status)};
  }
  Request receive(void* data, std::size_t bytes, Message message) override {
    const LongType type(bytes);
    auto theirs = unwrap<MPI_Message>(message);
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Imrecv(data, type.count(), type.type(), &theirs, &request), "MPI_Imrecv");
    return wrap<Request>(request);
  }

  Outcome test(Request& request) override {
    auto theirs = unwrap<MPI_Request>(request);
    int is_done = 0;
    const int code = MPI_Test(&theirs, &is_done, MPI_STATUS_IGNORE);
    request = wrap<Request>(theirs);
    return {.is_done = is_done != 0 || code != MPI_SUCCESS, .error = code == MPI_SUCCESS ? 0 : code};
  }
  std::string describe(int error) override { return error_text(error); }

 private:
  static const void* or_in_place(const void* in) { return in == nullptr ? MPI_IN_PLACE : in; }
  MPI_Op op_of(Op op) const {
    switch (op) {
      case Op::sum:
        return MPI_SUM;
      case Op::product:
        return MPI_PROD;
      case Op::min:
        return MPI_MIN;
      case Op::max:
        return MPI_MAX;
      case Op::band:
        return MPI_BAND;
      case Op::bor:
        return MPI_BOR;
      case Op::bxor:
        return MPI_BXOR;
      default:
        return ops_[static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::first_own)];
    }
  }

  std::mutex mutex_;
  std::size_t used_ = 0;
  std::array<MPI_Op, own_ops> ops_{};
};

}  // namespace
}  // namespace cohort::mpi

extern "C" [[gnu::visibility("default")]] cohort::mpi::Library* cohort_mpi_library() {
  static cohort::Immortal<cohort::mpi::RealLibrary> library;  // threads may use it while the process exits
  return &*library;
}
