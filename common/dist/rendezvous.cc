#include "common/dist/rendezvous.h"

#include <charconv>
#include <cstdlib>

namespace taopd {
namespace {

// Reads the variables of one launcher and keeps the first error.
class VariableReader {
 public:
  explicit VariableReader(const Environment& environment) : environment_(environment) {}

  bool has(const std::string& name) const { return environment_(name).has_value(); }

  int64_t Number(const std::string& name, int64_t smallest, int64_t largest) {
    const std::optional<std::string> text = environment_(name);
    if (!text) {
      Refuse(InvalidArgument(name, " is not set"));
      return smallest;
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc() || end != text->data() + text->size()) {
      Refuse(InvalidArgument(name, " = \"", *text, "\" is not a whole number"));
      return smallest;
    }
    if (value < smallest || value > largest) {
      Refuse(InvalidArgument(name, " = ", value, " is not in [", smallest, ", ", largest, "]"));
      return smallest;
    }
    return value;
  }
  int64_t Number(const std::string& name, int64_t smallest, int64_t largest, int64_t fallback) {
    return has(name) ? Number(name, smallest, largest) : fallback;
  }
  std::string Text(const std::string& name) {
    const std::optional<std::string> text = environment_(name);
    if (!text) Refuse(InvalidArgument(name, " is not set"));
    if (text && text->empty()) Refuse(InvalidArgument(name, " is empty"));
    return text.value_or("");
  }
  void Refuse(absl::Status status) { status_.Update(status); }
  const absl::Status& status() const { return status_; }

 private:
  const Environment& environment_;
  absl::Status status_;
};

constexpr int64_t kMaxRanks = 1 << 16;
constexpr int64_t kMaxPort = 65535;

bool MeetsAtAnAddress(const Rendezvous& rendezvous) {
  return rendezvous.world_size > 1 && rendezvous.store_file.empty();
}

// Reads the address and the port, under the names that the launcher uses.
void ReadMaster(VariableReader& reader, const std::string& address, const std::string& port,
                Rendezvous* rendezvous) {
  if (!MeetsAtAnAddress(*rendezvous)) return;
  rendezvous->master_addr = reader.Text(address);
  rendezvous->master_port = static_cast<int>(reader.Number(port, 1, kMaxPort));
}

void ReadTorchrun(VariableReader& reader, const Environment& environment, Rendezvous* rendezvous) {
  rendezvous->source = "RANK, WORLD_SIZE";
  rendezvous->world_size = reader.Number("WORLD_SIZE", 1, kMaxRanks);
  rendezvous->rank = reader.Number("RANK", 0, rendezvous->world_size - 1);
  rendezvous->local_world_size = reader.Number("LOCAL_WORLD_SIZE", 1, rendezvous->world_size,
                                               /*fallback=*/rendezvous->world_size == 1 ? 1 : 0);
  const int64_t last =
      reader.has("LOCAL_WORLD_SIZE") ? rendezvous->local_world_size - 1 : rendezvous->rank;
  rendezvous->local_rank = reader.Number("LOCAL_RANK", 0, last, /*fallback=*/0);
  rendezvous->launcher_serves_store =
      environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  ReadMaster(reader, "MASTER_ADDR", "MASTER_PORT", rendezvous);
}

void ReadKubeflow(VariableReader& reader, const Environment& environment, Rendezvous* rendezvous) {
  rendezvous->source = "PET_NNODES, PET_NODE_RANK";
  rendezvous->world_size = reader.Number("PET_NNODES", 1, kMaxRanks);
  const std::string processes = environment("PET_NPROC_PER_NODE").value_or("1");
  if (processes != "1" && processes != "auto" && processes != "cpu" && processes != "gpu") {
    reader.Refuse(InvalidArgument(
        "PET_NPROC_PER_NODE = \"", processes,
        "\": this process can be one rank; taopd-trainer launch starts several on a node"));
  }
  rendezvous->rank = rendezvous->world_size == 1
                         ? 0
                         : reader.Number("PET_NODE_RANK", 0, rendezvous->world_size - 1);
  ReadMaster(reader, "PET_MASTER_ADDR", "PET_MASTER_PORT", rendezvous);
}

void ReadIndexedJob(VariableReader& reader, Rendezvous* rendezvous) {
  rendezvous->source = "JOB_COMPLETION_INDEX, WORLD_SIZE";
  rendezvous->world_size = reader.Number("WORLD_SIZE", 1, kMaxRanks);
  rendezvous->rank = reader.Number("JOB_COMPLETION_INDEX", 0, rendezvous->world_size - 1);
  ReadMaster(reader, reader.has("MASTER_ADDR") ? "MASTER_ADDR" : "JOBSET_COORDINATOR",
             "MASTER_PORT", rendezvous);
}

// Returns the number of tasks on this node, or 0 if Slurm does not give it exactly.
// SLURM_NTASKS_PER_NODE is the requested number: a node of the step may have fewer tasks.
int64_t ReadSlurmLocalWorldSize(VariableReader& reader, int64_t world_size) {
  if (world_size == 1) return 1;
  if (reader.has("SLURM_STEP_TASKS_PER_NODE")) {
    const std::string list = reader.Text("SLURM_STEP_TASKS_PER_NODE");
    // A list of one entry, "4" or "4(x2)", applies to every node.
    if (!reader.has("SLURM_NODEID") && list.find(',') != std::string::npos) return 0;
    const auto tasks = TasksOfNode(list, reader.Number("SLURM_NODEID", 0, kMaxRanks, 0));
    if (tasks.ok() && *tasks <= world_size) return *tasks;
    reader.Refuse(tasks.ok() ? InvalidArgument("SLURM_STEP_TASKS_PER_NODE = \"", list, "\" has ",
                                               *tasks, " tasks on this node, of ", world_size)
                             : Annotate(tasks.status(), "SLURM_STEP_TASKS_PER_NODE"));
    return 0;
  }
  const int64_t asked = reader.Number("SLURM_NTASKS_PER_NODE", 1, kMaxRanks, 0);
  return asked > 0 && world_size % asked == 0 ? asked : 0;
}

void ReadSlurm(VariableReader& reader, Rendezvous* rendezvous) {
  rendezvous->source = "SLURM_PROCID, SLURM_STEP_NUM_TASKS";
  rendezvous->world_size = reader.Number("SLURM_STEP_NUM_TASKS", 1, kMaxRanks);
  rendezvous->rank = reader.Number("SLURM_PROCID", 0, rendezvous->world_size - 1);
  rendezvous->local_rank = reader.Number("SLURM_LOCALID", 0, rendezvous->rank, /*fallback=*/0);
  rendezvous->local_world_size = ReadSlurmLocalWorldSize(reader, rendezvous->world_size);
  if (!reader.has("SLURM_LOCALID")) {
    rendezvous->local_world_size = rendezvous->world_size == 1 ? 1 : 0;
  } else if (rendezvous->local_world_size > 0 &&
             rendezvous->local_rank >= rendezvous->local_world_size) {
    reader.Refuse(InvalidArgument("SLURM_LOCALID = ", rendezvous->local_rank, " is not in [0, ",
                                  rendezvous->local_world_size - 1, "], the tasks of this node"));
  }
  if (!MeetsAtAnAddress(*rendezvous)) return;
  if (reader.has("MASTER_ADDR")) {
    rendezvous->master_addr = reader.Text("MASTER_ADDR");
  } else {
    const auto host = FirstHostOf(reader.Text("SLURM_STEP_NODELIST"));
    if (host.ok()) rendezvous->master_addr = *host;
    if (!host.ok()) reader.Refuse(Annotate(host.status(), "SLURM_STEP_NODELIST"));
  }
  // Steps of different jobs on one machine should not meet, so the port is derived from the job's
  // number.
  constexpr int kFirstPort = 20000, kNumPorts = 10000;
  if (reader.has("MASTER_PORT")) {
    rendezvous->master_port = static_cast<int>(reader.Number("MASTER_PORT", 1, kMaxPort));
  } else {
    const int64_t job = reader.Number("SLURM_JOB_ID", 0, INT64_MAX);
    rendezvous->master_port = static_cast<int>(kFirstPort + job % kNumPorts);
  }
}

}  // namespace

Environment ProcessEnvironment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  };
}

absl::StatusOr<Rendezvous> ReadRendezvous(const Environment& environment) {
  Rendezvous rendezvous;
  VariableReader reader(environment);
  rendezvous.store_file = environment("TAOPD_RENDEZVOUS_FILE").value_or("");
  rendezvous.secret = environment("TAOPD_RANK_SECRET").value_or("");
  if (reader.has("RANK") || (reader.has("WORLD_SIZE") && !reader.has("JOB_COMPLETION_INDEX"))) {
    ReadTorchrun(reader, environment, &rendezvous);
  } else if (reader.has("PET_NNODES")) {
    ReadKubeflow(reader, environment, &rendezvous);
  } else if (reader.has("JOB_COMPLETION_INDEX") && reader.has("WORLD_SIZE")) {
    ReadIndexedJob(reader, &rendezvous);
  } else if (reader.has("SLURM_STEP_ID") && reader.has("SLURM_STEP_NUM_TASKS")) {
    // The script of a job has SLURM_PROCID too, but no step: it runs alone.
    ReadSlurm(reader, &rendezvous);
  }
  if (rendezvous.rank == 0 && rendezvous.world_size > 1) {
    rendezvous.listen_fd = static_cast<int>(reader.Number("TAOPD_LISTEN_FD", 0, 1 << 20, -1));
  }
  rendezvous.prefix = "taopd";
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RESTART_ATTEMPT",
                           "SLURM_RESTART_COUNT"}) {
    if (const auto value = environment(name)) rendezvous.prefix += "/" + *value;
  }
  TAOPD_RETURN_IF_ERROR(Annotate(reader.status(), Concat("environment (", rendezvous.source, ")")));
  return rendezvous;
}

absl::StatusOr<int64_t> TasksOfNode(const std::string& tasks_per_node, int64_t node) {
  const char* at = tasks_per_node.data();
  const char* const end = at + tasks_per_node.size();
  const auto malformed = [&] {
    return InvalidArgument("\"", tasks_per_node, "\" is not a list such as 2(x3),1");
  };
  for (int64_t first = 0;; ++at) {
    int64_t tasks = 0, times = 1;
    auto read = std::from_chars(at, end, tasks);
    if (read.ec != std::errc() || tasks < 1) return malformed();
    at = read.ptr;
    if (end - at > 2 && at[0] == '(' && at[1] == 'x') {
      read = std::from_chars(at + 2, end, times);
      if (read.ec != std::errc() || times < 1 || read.ptr == end || *read.ptr != ')') {
        return malformed();
      }
      at = read.ptr + 1;
    }
    if (at != end && *at != ',') return malformed();
    if (node < first + times) return tasks;
    first += times;
    if (at == end) {
      return InvalidArgument("\"", tasks_per_node, "\" has ", first, " nodes, no node ", node);
    }
  }
}

absl::StatusOr<std::string> FirstHostOf(const std::string& node_list) {
  const size_t end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    const size_t last = node_list.find_first_of(",-]", end);
    const size_t close = node_list.find(']', end);
    if (close == std::string::npos) {
      return InvalidArgument("\"", node_list, "\" has a [ without a ]");
    }
    host += node_list.substr(end + 1, last - end - 1);
    // The text after the bracket belongs to each host's name.
    const size_t next = node_list.find(',', close);
    if (node_list.find('[', close) < next) {
      return InvalidArgument("\"", node_list,
                             "\" has several [ in a name, which is not supported: set MASTER_ADDR");
    }
    host += node_list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
  }
  if (host.empty()) return InvalidArgument("\"", node_list, "\" names no host");
  return host;
}

}  // namespace taopd
