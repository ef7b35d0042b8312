// SPDX-License-Identifier: BSD-3-Clause
//
// A Buffer describes memory that a collective may write, and a ConstBuffer memory that it may only read: address,
// element type, sizes, strides, device, and optionally an owner that keeps the memory alive. They are small values that
// are made implicitly from the types that users already have:
//
//   std::vector<float> v(1024);
//   pg->all_reduce(v);                                                // borrowed: v must outlive the operation
//   std::span<const float> s = v;
//   pg->send(s, 1);
//   auto tensor = cohort::Buffer::from_dlpack(managed);               // owned through its deleter
//   cohort::Buffer columns(pointer, cohort::DType::f32, {rows, cols}, {1, rows}, "cpu", owner);  // strides in elements
//
// A range of structs, or of other trivially copyable objects that have no dtype, becomes a Buffer of dtype `raw` with
// one row of bytes per object. It can be moved; a reduction needs a function of your own (reduction.h):
//
//   struct Token { std::int64_t id; float score; };
//   std::vector<Token> tokens(64);
//   pg->broadcast(tokens);
//
// All ranks must represent such objects in the same way (the same struct, compiler and kind of CPU), and a pointer in
// them means nothing on another rank.
//
// A type of your own becomes convertible by specialising BufferTraits:
//
//   template <> struct cohort::BufferTraits<Image> {
//     static cohort::Buffer buffer(Image& i) { return {i.pixels, DType::u8, {i.height, i.width}}; }
//     static cohort::ConstBuffer const_buffer(const Image& i) { return {i.pixels, DType::u8, {i.height, i.width}}; }
//   };
//
// A handle whose buffer keeps the memory alive, as a tensor is, also has `static constexpr bool is_handle = true;`.
// Operations then accept temporaries of it.
#pragma once

#include <cohort/device.h>
#include <cohort/dtype.h>
#include <cohort/export.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace cohort {

/// Sizes or strides. Up to four dimensions are stored inside the object, so that making a Buffer does not allocate.
class COHORT_API Dims {
 public:
  Dims() = default;
  // Inline, and without a look at the heap where all dimensions fit, because buffers are made and copied for every
  // operation.
  Dims(const Dims& other) : size_(other.size_), inline_(other.inline_) {
    if (other.more_ != nullptr) copy_more(other.more_.get());
  }
  Dims(Dims&&) noexcept = default;
  Dims& operator=(const Dims& other) {
    if (this != &other) *this = Dims(other);
    return *this;
  }
  Dims& operator=(Dims&&) noexcept = default;
  ~Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span(values.begin(), values.size())) {}
  explicit(false) Dims(const std::vector<std::int64_t>& values) : Dims(std::span(values)) {}
  explicit(false) Dims(std::span<const std::int64_t> values) : size_(values.size()) {
    if (size_ <= inline_capacity) {
      for (std::size_t i = 0; i < size_; ++i) inline_[i] = values[i];
    } else {
      copy_more(values.data());
    }
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  const std::int64_t* data() const noexcept { return size_ <= inline_capacity ? inline_.data() : more_.get(); }
  std::int64_t operator[](std::size_t i) const noexcept { return data()[i]; }
  const std::int64_t* begin() const noexcept { return data(); }
  const std::int64_t* end() const noexcept { return data() + size_; }

  friend bool operator==(const Dims& a, const Dims& b) noexcept { return std::ranges::equal(a, b); }

 private:
  static constexpr std::size_t inline_capacity = 4;
  void copy_more(const std::int64_t* values);

  std::size_t size_ = 0;
  std::array<std::int64_t, inline_capacity> inline_{};
  std::unique_ptr<std::int64_t[]> more_;  // NOLINT(*-avoid-c-arrays): all of them, where there are more than four
};

/// "[2, 3]"
COHORT_API std::string to_string(const Dims& dims);

/// Specialise to make a type convertible to Buffer and ConstBuffer; see the top of this file.
template <class T>
struct BufferTraits {};

class ConstBuffer;

namespace detail {

/// Trivially copyable types without a dtype, moved as bytes. Pointers are excluded because they mean nothing elsewhere,
/// and ranges and types that are buffers themselves because a range of those is a list of buffers.
template <class T>
concept MovedAsBytes =
    std::is_trivially_copyable_v<T> && !Element<T> && !std::is_pointer_v<T> && !std::is_member_pointer_v<T> &&
    !std::is_null_pointer_v<T> && !std::ranges::range<T> && !std::is_convertible_v<T&, ConstBuffer>;

template <class R>
concept RangeOfMemory = std::ranges::contiguous_range<R> && std::ranges::sized_range<R> &&
                        (Element<std::ranges::range_value_t<R>> || MovedAsBytes<std::ranges::range_value_t<R>>);

template <class T>
constexpr DType dtype_or_raw() {
  if constexpr (Element<T>) {
    return dtype_of<T>;
  } else {
    return DType::raw;
  }
}

/// A DLTensor from any copy of dlpack.h (DLPack's own, ATen's, a framework's). It is recognised by its members, so that
/// the core needs no DLPack header and conflicts with none.
template <class T>
concept DLTensorLike = requires(const T& t) {
  { t.data } -> std::convertible_to<const void*>;
  { t.device.device_type };
  { t.device.device_id } -> std::convertible_to<int>;
  { t.dtype.code } -> std::convertible_to<int>;
  { t.dtype.bits } -> std::convertible_to<int>;
  { t.dtype.lanes } -> std::convertible_to<int>;
  { t.ndim } -> std::convertible_to<int>;
  { t.shape } -> std::convertible_to<const std::int64_t*>;
  { t.strides } -> std::convertible_to<const std::int64_t*>;
  { t.byte_offset } -> std::convertible_to<std::uint64_t>;
};

/// DLManagedTensor or DLManagedTensorVersioned.
template <class T>
concept DLManagedTensorLike = requires(T& t) {
  requires DLTensorLike<decltype(t.dl_tensor)>;
  { t.deleter(&t) };
};

template <class T>
concept Handle = requires { requires BufferTraits<T>::is_handle; };

/// The address, type and device of a DLTensor, checked and translated.
struct DLPackView {
  void* data;
  DType dtype;
  Device device;
};
COHORT_API DLPackView read_dlpack(void* data, int device_type, int device_id, int code, int bits, int lanes,
                                  std::uint64_t byte_offset);
COHORT_API void check_dlpack_version(std::uint32_t major);

}  // namespace detail

/// Memory that is only read. Also the base of Buffer.
class COHORT_API ConstBuffer {
 public:
  ConstBuffer() = default;
  /// Without strides the memory is contiguous, with the last dimension varying fastest. Throws ValueError if a size is
  /// negative, if there are not as many strides as sizes, or if the total size overflows.
  ConstBuffer(const void* data, DType dtype, Dims sizes, Dims strides = {}, Device device = {},
              std::shared_ptr<const void> keep_alive = nullptr);

  /// Contiguous ranges of elements: vector, array, span and others, but not vector<bool>, which does not store bools.
  template <class R>
    requires(detail::RangeOfMemory<const R>)
  explicit(false) ConstBuffer(const R& range)
      : ConstBuffer(RangeTag<std::ranges::range_value_t<const R>>(), std::ranges::data(range),
                    std::ranges::size(range)) {}

  template <class T>
    requires requires(const T& t) { BufferTraits<T>::const_buffer(t); }
  explicit(false) ConstBuffer(const T& object) : ConstBuffer(BufferTraits<T>::const_buffer(object)) {}

  const void* data() const noexcept { return data_; }
  DType dtype() const noexcept { return dtype_; }
  const Dims& sizes() const noexcept { return sizes_; }
  /// In elements; empty if the memory is contiguous.
  const Dims& strides() const noexcept { return strides_; }
  const Device& device() const noexcept { return device_; }
  /// Null for borrowed memory.
  const std::shared_ptr<const void>& keep_alive() const noexcept { return keep_alive_; }

  std::int64_t count() const noexcept { return count_; }
  std::size_t bytes() const noexcept { return static_cast<std::size_t>(count_) * size_of(dtype_); }
  /// Whether the elements lie in row-major order, without gaps.
  bool is_contiguous() const noexcept { return strides_.empty(); }
  /// Whether the elements fill the memory without gaps or overlaps, in any order of the dimensions (a transposed
  /// matrix, channels last).
  bool is_dense() const;
  /// Operations refuse memory that is not contiguous. With `true`, they take it if it is dense, and use the elements in
  /// the order in which they lie in memory: sizes and strides must then be the same on all ranks, which is compared
  /// like the dtype, and in all buffers of a call. Operations that cut a buffer into pieces still refuse it.
  void use_in_memory_order(bool use) noexcept { in_memory_order_ = use; }
  bool is_used_in_memory_order() const noexcept { return in_memory_order_; }

 protected:
  template <class T>
  struct RangeTag {};
  /// The memory of a range of so many objects of type T. Inline, because most buffers are made here, for each call
  /// anew.
  template <class T>
  ConstBuffer(RangeTag<T> /*type*/, const void* data, std::size_t objects)
      : data_(data),
        dtype_(detail::dtype_or_raw<T>()),
        count_(static_cast<std::int64_t>(objects * (Element<T> ? 1 : sizeof(T)))),
        sizes_(sizes_of<T>(objects)) {
    if (data == nullptr && objects > 0) refuse_null();
  }

 private:
  template <class T>
  static Dims sizes_of(std::size_t objects) {
    const auto rows = static_cast<std::int64_t>(objects);
    if constexpr (Element<T>) {
      return {rows};
    } else {
      return {rows, static_cast<std::int64_t>(sizeof(T))};
    }
  }
  [[noreturn]] void refuse_null() const;

  const void* data_ = nullptr;
  DType dtype_ = DType::u8;
  Device device_;
  bool in_memory_order_ = false;
  std::int64_t count_ = 0;
  Dims sizes_;
  Dims strides_;
  std::shared_ptr<const void> keep_alive_;
};

/// Memory that may be written.
class COHORT_API Buffer : public ConstBuffer {
 public:
  Buffer() = default;
  Buffer(void* data, DType dtype, Dims sizes, Dims strides = {}, Device device = {},
         std::shared_ptr<const void> keep_alive = nullptr)
      : ConstBuffer(data, dtype, std::move(sizes), std::move(strides), device, std::move(keep_alive)) {}

  /// Accepts lvalues, and views such as span of any value category. A temporary vector is refused because it would be
  /// destroyed before the operation ends.
  template <class R>
    requires(detail::RangeOfMemory<R> && (std::is_lvalue_reference_v<R> || std::ranges::borrowed_range<R>) &&
             !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>)
  explicit(false) Buffer(R&& range)
      : ConstBuffer(RangeTag<std::ranges::range_value_t<R>>(), std::ranges::data(range), std::ranges::size(range)) {}

  /// Temporaries are accepted of handles only.
  template <class T>
    requires(requires(T& t) { BufferTraits<std::remove_cvref_t<T>>::buffer(t); } &&
             (std::is_lvalue_reference_v<T> || detail::Handle<std::remove_cvref_t<T>>))
  explicit(false) Buffer(T&& object) : Buffer(BufferTraits<std::remove_cvref_t<T>>::buffer(object)) {}

  void* data() const noexcept { return const_cast<void*>(ConstBuffer::data()); }

  /// Borrows the memory of a DLTensor.
  template <detail::DLTensorLike T>
  static Buffer from_dlpack(const T& tensor, std::shared_ptr<const void> keep_alive = nullptr) {
    const auto view = detail::read_dlpack(
        tensor.data, static_cast<int>(tensor.device.device_type), static_cast<int>(tensor.device.device_id),
        static_cast<int>(tensor.dtype.code), tensor.dtype.bits, tensor.dtype.lanes, tensor.byte_offset);
    const auto rank = static_cast<std::size_t>(tensor.ndim);
    return {view.data,
            view.dtype,
            Dims(std::span<const std::int64_t>(tensor.shape, rank)),
            tensor.strides == nullptr ? Dims{} : Dims(std::span<const std::int64_t>(tensor.strides, rank)),
            view.device,
            std::move(keep_alive)};
  }

  /// Takes ownership of a managed tensor. Its deleter runs when the last Buffer made from it is destroyed, and also if
  /// the tensor is refused because of an unknown type or a newer major version.
  template <detail::DLManagedTensorLike T>
  static Buffer from_dlpack(T* managed) {
    std::shared_ptr<T> owner(managed, [](T* t) {
      if (t->deleter != nullptr) t->deleter(t);
    });
    if constexpr (requires { managed->version.major; }) detail::check_dlpack_version(managed->version.major);
    return from_dlpack(managed->dl_tensor, owner);
  }
};

}  // namespace cohort
