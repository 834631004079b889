// SPDX-License-Identifier: Apache-2.0
//
// Graphs are what a capture recorded, run in that order as one item of work.
#include "graph.h"

#include "call.h"

struct Graph {
  std::vector<Item> items;
};
struct GraphExec {
  std::vector<Item> items;
};

namespace {

Registry<Graph>& graphs() {
  static auto* all = new Registry<Graph>;
  return *all;
}
Registry<GraphExec>& execs() {
  static auto* all = new Registry<GraphExec>;
  return *all;
}

CUresult launch(CUgraphExec handle, CUstream stream) {
  auto exec = execs().get(handle);
  if (!exec) return kInvalidHandle;
  return submit(stream, "graph", [exec] {
    for (const Item& item : exec->items) run(item);
    values().graphs++;
  });
}

struct LaunchParams {
  CUgraphExec exec;
  CUstream stream;
};

}  // namespace

CUgraph add_graph(std::vector<Item> items) {
  auto graph = std::make_shared<Graph>();
  graph->items = std::move(items);
  return graphs().add(graph);
}

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* handle, CUgraph from, unsigned long long) {
  return call("cuGraphInstantiateWithFlags", 643, 0, [&] {
    auto graph = graphs().get(from);
    if (!graph) return kInvalidHandle;
    auto exec = std::make_shared<GraphExec>();
    exec->items = graph->items;
    *handle = execs().add(exec);
    return kSuccess;
  });
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  LaunchParams params{exec, stream};
  return call("cuGraphLaunch", 514, 0, &params, nullptr, [&] { return launch(exec, stream); });
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  LaunchParams params{exec, stream};
  return call("cuGraphLaunch_ptsz", 515, 0, &params, nullptr,
              [&] { return launch(exec, stream ? stream : STREAM_PER_THREAD); });
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream) {
  return call("cuGraphUpload", 0, 0, [&] { return execs().get(exec) ? kSuccess : kInvalidHandle; });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return call("cuGraphExecDestroy", 516, 0, [&] { return execs().take(exec) ? kSuccess : kInvalidHandle; });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return call("cuGraphDestroy", 517, 0, [&] { return graphs().take(graph) ? kSuccess : kInvalidHandle; });
}

}  // extern "C"
