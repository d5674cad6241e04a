// ipuc: compile ONNX models into .ipu files, and run them within a memory budget.
//
// Functions that can fail give NULL or false; ipuc_error() tells why. A session is used by one thread at a time, models by any
// number. Made from c/src/lib.rs: BLESS=1 cargo test --manifest-path c/Cargo.toml

#ifndef IPUC_H
#define IPUC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// An opened file, which sessions share.
typedef struct IpucModel IpucModel;

// What a run gave.
typedef struct IpucOutputs IpucOutputs;

// State of one caller.
typedef struct IpucSession IpucSession;

// A dense tensor, row-major. `data_type` is a number of ONNX's `TensorProto.DataType` (1 is float, 7 is int64_t); elements
// of less than a byte are packed, the first in the lowest bits. Strings are not supported.
typedef struct IpucTensor {
  // Name of the input or output.
  const char *name;
  // Element type.
  int32_t data_type;
  // Number of axes.
  size_t rank;
  // Extent of each axis.
  const size_t *shape;
  // The elements.
  const void *data;
  // Length of the elements in bytes.
  size_t bytes;
} IpucTensor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Why the last function of this thread that failed did: a sentence, valid until the next one fails. Empty where none has.
const char *ipuc_error(void);

// Compile a model (an .onnx file) into a file (.ipu).
//
// # Safety
// Both are strings that end with a zero.
bool ipuc_compile(const char *model, const char *output);

// Open an .ipu file. `memory_bytes` bounds weights, activations, state, inputs and outputs: weights that do not fit are
// streamed from the file; 0 is what the machine has.
//
// # Safety
// The path is a string that ends with a zero.
struct IpucModel *ipuc_model_open(const char *path,
                                  uint64_t memory_bytes);

// Free a model; its sessions stay.
//
// # Safety
// It is NULL or a model that is not used afterwards.
void ipuc_model_free(struct IpucModel *model);

// A session with fresh state; 0 threads are all cores.
//
// # Safety
// The model is not freed.
struct IpucSession *ipuc_session_new(const struct IpucModel *model, size_t threads);

// Another session with the same state, from which both go their own ways.
//
// # Safety
// The session is not freed, and no other thread uses it.
struct IpucSession *ipuc_session_fork(const struct IpucSession *session);

// Forget all state.
//
// # Safety
// The session is not freed, and no other thread uses it.
bool ipuc_session_reset(struct IpucSession *session);

// Free a session.
//
// # Safety
// It is NULL or a session that is not used afterwards.
void ipuc_session_free(struct IpucSession *session);

// Run an entry (NULL where there is only one) on so many inputs, which are copied.
//
// # Safety
// The session is not freed and no other thread uses it; the inputs are as their fields say.
struct IpucOutputs *ipuc_run(struct IpucSession *session,
                             const char *entry,
                             const struct IpucTensor *inputs,
                             size_t input_count);

// The number of outputs.
//
// # Safety
// The outputs are NULL or not freed.
size_t ipuc_outputs_count(const struct IpucOutputs *outputs);

// Fill in an output by its number, or by its name where that is not NULL; what it points to lives as long as the outputs.
//
// # Safety
// The outputs are not freed, the name is NULL or a string that ends with a zero, and the tensor may be written.
bool ipuc_outputs_get(const struct IpucOutputs *outputs,
                      size_t index,
                      const char *name,
                      struct IpucTensor *tensor);

// Free outputs.
//
// # Safety
// They are NULL or not used afterwards.
void ipuc_outputs_free(struct IpucOutputs *outputs);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* IPUC_H */
