// Compile a model, run it twice, and print what it gives: run MODEL.onnx MODEL.ipu
#include <stdio.h>

#include "ipuc.h"

static int failed(const char *what) {
  fprintf(stderr, "%s: %s\n", what, ipuc_error());
  return 1;
}

int main(int count, char **arguments) {
  if (count != 3) {
    fprintf(stderr, "usage: %s MODEL.onnx MODEL.ipu\n", arguments[0]);
    return 2;
  }
  if (!ipuc_compile(arguments[1], arguments[2])) return failed("compile");
  IpucModel *model = ipuc_model_open(arguments[2], 32 << 20);
  if (model == NULL) return failed("open");
  IpucSession *session = ipuc_session_new(model, 1);
  if (session == NULL) return failed("session");
  ipuc_model_free(model);  // the session has what it needs
  for (int turn = 0; turn < 2; turn++) {
    const size_t shape[2] = {1, 3};
    const float elements[3] = {1, 1, (float)turn};
    const IpucTensor x = {"x", 1, 2, shape, elements, sizeof elements};
    IpucOutputs *outputs = ipuc_run(session, NULL, &x, 1);
    if (outputs == NULL) return failed("run");
    IpucTensor y;
    if (!ipuc_outputs_get(outputs, 0, "y", &y)) return failed("output");
    printf("%s: type %d, shape", y.name, y.data_type);
    for (size_t axis = 0; axis < y.rank; axis++) printf(" %zu", y.shape[axis]);
    printf(":");
    for (size_t at = 0; at < y.bytes / sizeof(float); at++) printf(" %g", ((const float *)y.data)[at]);
    printf("\n");
    ipuc_outputs_free(outputs);
  }
  const size_t wide[2] = {1, 4};
  const float elements[4] = {1, 1, 1, 1};
  const IpucTensor wrong = {"x", 1, 2, wide, elements, sizeof elements};
  if (ipuc_run(session, NULL, &wrong, 1) == NULL) printf("refused: %s\n", ipuc_error());
  ipuc_session_free(session);
  return 0;
}
