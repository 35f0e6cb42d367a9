"""Faults to plant, and the tests that must find them.

A mutant replaces `old` by `new` in `file`; `old` occurs there exactly once. `filter` chooses the tests of `program`. A
mutant that no test can find, because it changes nothing that can be observed, has the reason in `survives`."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    program: str
    filter: str
    survives: str = ""


def of(program, tests, file, *changes):
    """Mutants of one file: (name, old, new) or (name, old, new, the reason why it survives)."""
    return [Mutant(change[0], file, change[1], change[2], program, tests, *change[3:]) for change in changes]


CUDA = "cuda_kernels_test"
ATTENTION = "*CudaPagedAttentionTest*:*DecodeStepTest*:*PlanPagedTiles*"
HEAD = "*FusedHead*"
SCORING = "*FusedScoring*"
LAYERS = "*CudaLayersTest*"
CORE = "engine_core_test"
SCHEDULER = "*Scheduler*:*BlockPool*"
STORE = "*Checkpoint*"
STEP = "trainer_step_test"

MUTANTS = [
    # ---- kernels/cuda, in the emulated run-time ----
    *of(CUDA, ATTENTION, "kernels/cuda/attention/partition.h",
        ("weights without the shift", "exp2f(score[i] - shift)", "exp2f(score[i])"),
        ("page by its place in the partition", "view.block_table[first / kPage]", "view.block_table[page]"),
        ("one group of the values' sums", "sum += place[(g * kAtOnce + query)", "sum = place[(g * kAtOnce + query)"),
        ("infinite values count for all", "(finite || view.Sees(query, position))", "(true)"),
        ("window one key too long", "key > position - window)", "key >= position - window)"),
        ("queries without the scale", "Load(from + d) * scale", "Load(from + d)"),
        ("keys of the next position", "return key <= position &&", "return key <= position + 1 &&")),
    *of(CUDA, ATTENTION, "kernels/cuda/attention/paged_attention.cu",
        ("merged values are not divided", "Store(value / sum, out + d)", "Store(value, out + d)"),
        ("barrier between two partitions", "__syncthreads();  // all threads have read", "// all threads have read"),
        ("factors exchanged", "MergeValue(value, running_factor, state[2 + d], factor)",
         "MergeValue(value, factor, state[2 + d], running_factor)"),
        ("the partition of another tile", "(p.tiles_I[middle].first_partition <= partition ? low : high)",
         "(p.tiles_I[middle].first_partition < partition ? low : high)"),
        ("window's partitions", "(seen - 1) / kPartition + 2", "(seen - 1) / kPartition + 1")),
    *of(CUDA, ATTENTION, "kernels/cuda/attention/paged_tiles.cc",
        ("positions without the past", "static_cast<int32_t>(sequences[s].past_len + i)", "static_cast<int32_t>(i)"),
        ("tiles of one row too many", "std::min(tile_rows, sequence.num_rows - row)", "tile_rows")),
    *of(CUDA, "*RotateAndAppend*", "kernels/cuda/attention/rotate_and_append.cu",
        ("key head", "(head - num_queries) % K", "(head - num_queries) / 2"),
        ("place in the block", "position % kBlockTokens) * D", "position / kBlockTokens) * D")),
    *of(CUDA, "*RotateAndAppend*:*CudaLayersTest*", "kernels/cuda/norm_rotate.h",
        ("rotation to the other side", "* Load(cos + i)) + second * Load(sin + i)",
         "* Load(cos + i)) - second * Load(sin + i)"),
        ("rms without eps", "static_cast<float>(n) + eps)", "static_cast<float>(n))")),
    *of(CUDA, "*CudaSampleRowsTest*", "kernels/cuda/sampling/sample_rows.cu",
        ("empty blocks are chosen", "if (block_sums[b] == 0) continue;", ""),
        ("infinite logits are valid", "!(z < -NegativeInfinity<float>())", "z != z"),
        ("raw log-prob of the tempered sum", "difference - log(shared.raw_total)", "difference - log(shared.total)"),
        ("the highest id among equals", "return b < a ? b : a;", "return b < a ? a : b;")),
    *of(CUDA, "*CudaSampleRowsTest*", "kernels/cuda/sampling/weight_blocks.h",
        ("small exponents wrap", "y = y > -127.0f ? y : -127.0f;", ""),
        ("barrier after a block's sum", "block_sums[block] = total;\n    }\n    __syncthreads();",
         "block_sums[block] = total;\n    }")),
    *of(CUDA, SCORING, "kernels/cuda/head/scoring_row.h",
        ("rank without equals", "z[i].x[j] >= sampled_logit", "z[i].x[j] > sampled_logit"),
        ("tiles of the threshold are left out", "if (OrderedBits(row.tiles[i].max) >= lowest_max)",
         "if (OrderedBits(row.tiles[i].max) > lowest_max)"),
        ("barrier before tiles are selected", "shared->num_top = 0;\n  }\n  __syncthreads();",
         "shared->num_top = 0;\n  }"),
        ("top-k stay in the tail", "= row.logits[id];\n    row.logits[id] = NegativeInfinity<float>();", "= row.logits[id];"),
        ("candidates stay in their tail",
         "if (id >= 0 && id < args.vocabulary_size) row.logits[id] = NegativeInfinity<float>();", "(void)id;"),
        ("entropy of the support", "support_entropy -= exp(log_p) * log_p", "support_entropy += exp(log_p) * log_p"),
        ("candidates without the temperature", "static_cast<float>(*value * scale - log_sum_exp)",
         "static_cast<float>(*value - log_sum_exp)")),
    *of(CUDA, SCORING, "kernels/cuda/head/scoring_tiles.h",
        ("entropy of lower tiles", "(tile.sum_x + lower * tile.sum)", "(tile.sum_x)")),
    *of(CUDA, SCORING, "kernels/cuda/head/radix_select.h",
        ("wanted keys of a digit", "shared_wanted = wanted - above;", "shared_wanted = wanted;")),
    *of(CUDA, SCORING, "kernels/cuda/head/fused_scoring.cu",
        ("results of the first chunk", "args.out = ResultsFrom(problem, result, begin);",
         "args.out = ResultsFrom(problem, result, 0);")),
    *of(CUDA, HEAD, "kernels/cuda/head/top_k_ahead.h",
        ("equal keys are ahead", "if (keys[middle] > key)", "if (keys[middle] >= key)",
         "the key of a token outside of the support equals none of the support's, because the id is a part of it")),
    *of(CUDA, HEAD, "kernels/cuda/head/student_sweep.h",
        ("x at the new reference", "factor * (sums->sum_x + lower * sums->sum)", "factor * sums->sum_x"),
        ("E at the new reference", "v < tile; v += int64_t{kSweepThreads} * 4", "v < 0; v += int64_t{kSweepThreads} * 4")),
    *of(CUDA, HEAD, "kernels/cuda/head/student_support.h",
        ("duplicates pass", "__float_as_int(row[ids[j]]) != j", "false"),
        ("ids behind padding pass", "if (j > size && ids[j] != -1)", "if (false)"),
        ("the support stays in the complement", "row[ids[j]] = NegativeInfinity<float>();", ";")),
    *of(CUDA, HEAD, "kernels/cuda/head/student_objective.h",
        ("entries of another row", "e + i / entries_per_row * stride", "e + i % entries_per_row * stride"),
        ("rows without their scale", "Store(scale * Load(in", "Store(Load(in")),
    *of(CUDA, HEAD, "kernels/cuda/head/sparse_gradient.h",
        ("each entry adds all", "if (first > 0 && sorted_ids[first - 1] == id) return;", ""),
        ("only an id's first entry", "sorted_ids[i] == id; ++i)", "i == first; ++i)")),
    *of(CUDA, HEAD, "kernels/cuda/head/fused_head.cu",
        ("the gradient of the last chunk alone", "{scaled, hidden_size, false}, 1, r_.d_lm_head_VH",
         "{scaled, hidden_size, false}, 0, r_.d_lm_head_VH"),
        ("scales of the first rows", "objective.row_scale = b_.row_scale + place;", "objective.row_scale = b_.row_scale;")),
    *of(CUDA, LAYERS, "kernels/cuda/layers/norms_and_swiglu.cu",
        ("gradient of the sum", "result += Load(static_cast<const Element*>(p.d_sum_NH)",
         "result -= Load(static_cast<const Element*>(p.d_sum_NH)"),
        ("the first partial alone", "for (int64_t p = 0; p < num_partials; ++p)", "for (int64_t p = 0; p < 1; ++p)"),
        ("the sum is not rounded", "value = Load(sum);", ""),
        ("the mean of a reduction's first row", "dots.x[r] / static_cast<float>(p.size)",
         "dots.x[0] / static_cast<float>(p.size)"),
        ("rows behind a partial's end", "rows = end - first < kRowsAtOnce ? end - first : kRowsAtOnce;",
         "rows = kRowsAtOnce;"),
        ("barrier before the warps' sums are added", "return;\n  __syncthreads();\n", "return;\n"),
        ("the first warp's sums alone", "total += sums[w][i];", "total += w == 0 ? sums[w][i] : 0.0f;")),
    *of(CUDA, "*CudaAdamWTest*", "kernels/cuda/layers/adamw.cu",
        ("a tensor's first block", "(tensors[middle].first_block <= block ? low : high)",
         "(tensors[middle].first_block < block ? low : high)"),
        ("weights with the moments' bits", "AdamWRandomBits(weight_key,", "AdamWRandomBits(random_key,"),
        ("both moments with the same bits", "StochasticBfloat16(exp_avg_sq, random >> 16)",
         "StochasticBfloat16(exp_avg_sq, random & 0xffff)"),
        ("sums instead of squares", "sum += gradient * gradient;", "sum += gradient;")),
    # ---- kernels/torch, with the kernels in the emulated run-time ----
    *of("self_check_test", "*CudaPagedAttention*", "kernels/torch/composed/chunk_attention.cc",
        ("rows of a chunk see each other", "v_1KLD.narrow(2, past, Q), true, scale)",
         "v_1KLD.narrow(2, past, Q), false, scale)"),
        ("weights of the two parts exchanged", "return part(a) + part(b);",
         "return part({a.out_1NQD, b.log_sum_exp_1NQ}) + part({b.out_1NQD, a.log_sum_exp_1NQ});"),
        ("a chunk without the keys before it", "if (past == 0) return own.out_1NQD;", "return own.out_1NQD;"),
        ("windows are ignored", "if (sliding_window > 0 && chunk.past_len + chunk.num_rows > sliding_window) return false;",
         "")),
    *of("self_check_test", "*CudaPagedAttention*", "kernels/torch/attention/cuda_paged_attention.cc",
        ("long chunks have tiles, too", "custom_long_chunks ? nullptr : IsLongChunk)", "nullptr)"),
        ("long chunks are left out", "if (IsLongChunk(sequence)) long_chunks_", "if (false) long_chunks_")),
    # ---- common/engine ----
    *of(CORE, SCHEDULER, "common/engine/scheduling/block_pool.cc",
        ("evicted blocks are still found", "    Forget(&blocks_[block]);\n    ++num_evictions_;", "    ++num_evictions_;"),
        ("a shared block is freed", "if (--entry.num_references > 0) return;", "--entry.num_references;"),
        ("references of unused blocks", "unused_.erase(entry.unused_position);", "")),
    *of(CORE, SCHEDULER, "common/engine/scheduling/admission.cc",
        ("prefixes of other salts", "key.salt = sequence.request.cache_salt;", ""),
        ("prefixes of other weights", "key.weight_version = weight_version_;", ""),
        ("overdue sequences wait", "++first_waited_ > kPatience", "(++first_waited_, false)"),
        ("the last token is taken from the cache", "sequence.num_rows_needed() - 1;", "sequence.num_rows_needed();")),
    *of(CORE, SCHEDULER, "common/engine/scheduling/scheduler.cc",
        ("shared blocks are written", "    if (pool_.num_references(block) > 1) {\n      const int32_t copy",
         "    if (pool_.num_references(block) > 2) {\n      const int32_t copy"),
        ("a block is freed that a copy reads", "step->held_sources.push_back(*block);", "pool_.Release(*block);"),
        ("forked blocks have one owner", "for (int32_t block : follower->blocks) pool_.AddReference(block);", ""),
        ("deadlines end a moment later", "deadlines_.begin()->first <= now", "deadlines_.begin()->first < now"),
        ("the last generated row is counted", "--sequence->num_computed;  // it sits out", ";")),
    *of(CORE, "*Sampl*:*Truncat*", "common/engine/sampling/truncation.cc",
        ("top-p of everything", "const double target = params.top_p * before;", "const double target = params.top_p;"),
        ("the larger of two cuts", "return a.threshold > b.threshold ? a : b;", "return a.threshold > b.threshold ? b : a;"),
        ("one id more than top_k", "few_ids_.resize(top_k);", "few_ids_.resize(top_k + 1);")),
    *of(CORE, "*Sampl*:*Truncat*", "common/engine/sampling/sampler.cc",
        ("steps share uniforms", "RandomStream(seed, 2 * static_cast<uint64_t>(step))",
         "RandomStream(seed, static_cast<uint64_t>(step))"),
        ("sums without the temperature", "static_cast<float>(1.0 / row->temperature)", "1.0f")),
    # ---- trainer/checkpoint ----
    *of("checkpoint_fault_test", "*", "trainer/checkpoint/manifest.cc",
        ("files are not synced", "const bool ok = fsync(fd) == 0;", "const bool ok = true;")),
    *of("trainer_test", STORE, "trainer/checkpoint/manifest.cc",
        ("hashes are not compared", "if (*hash != file.sha256)", "if (false)"),
        ("sizes are not compared", "if (static_cast<int64_t>(size_bytes) != file.size_bytes)", "if (false)"),
        ("names leave the checkpoint", 'if (part == ".." || part == "."', 'if (part == "."'),
        ("links are followed", "it->symlink_status(error)", "it->status(error)"),
        ("a manifest of another step", "if (manifest->step != step)", "if (false)")),
    *of("checkpoint_fault_test", "*", "trainer/checkpoint/checkpoint_store.cc",
        ("the rename is not synced", "    TAOPD_RETURN_IF_ERROR(SyncDirectory(dir_));\n    const absl::Status status = DeleteOld",
         "    const absl::Status status = DeleteOld")),
    *of("trainer_test", STORE, "trainer/checkpoint/checkpoint_store.cc",
        ("one checkpoint more is kept", "num_kept++ < options_.keep_last", "num_kept++ <= options_.keep_last"),
        ("pinned checkpoints are deleted", "pinned_steps_.contains(it->step)", "false"),
        ("leftovers stay", "if (is_locked_here) return true;", "if (is_locked_here) return false;"),
        ("the newest before a step", "return ref.step > max_step ||", "return ref.step >= max_step ||"),
        ("the step itself is deleted", "return checkpoint.step > step ||", "return checkpoint.step >= step ||")),
    # ---- trainer/step, trainer/optim ----
    *of(STEP, "*Aggregation*:*SequenceWeights*:*Weights*", "trainer/step/loss/aggregation.cc",
        ("token means without lengths", "1.0 / (num_sequences * static_cast<double>(length))", "1.0 / num_sequences"),
        ("empty responses count", "[](int64_t length) { return length > 0; }", "[](int64_t) { return true; }")),
    *of(STEP, "*MicroBatch*", "trainer/step/loss/micro_batches.cc",
        ("the budget is never full", "sums[end] - sums[i] > budget_tokens", "sums[end] - sums[i] >= budget_tokens"),
        ("one run too many", "needed[i] == needed[reach[begin]]", "true")),
    *of(STEP, "*LearningRate*:*LrSchedule*:*Schedule*", "trainer/optim/lr_schedule.cc",
        ("warmup from zero", "static_cast<double>(step + 1) /", "static_cast<double>(step) /"),
        ("decay to zero", "(config.min_lr_ratio + (1.0 - config.min_lr_ratio) * remaining)", "remaining")),
    *of(STEP, "*TrainStep*:*NotFinite*:*NonFinite*", "trainer/step/phases/step_in_progress.cc",
        ("a gradient that is not finite", "if (!std::isfinite(grad_norm) ||", "if (")),
    *of(STEP, "*Support*", "trainer/step/support.cc",
        ("ids beyond the vocabulary", "if (reply_ids[j] < options.vocab_size)", "if (true)"),
        ("shared ids twice", "rollout.top_ids[j]) != teacher_end)", "rollout.top_ids[j]) == ids - 1)")),
    *of(STEP, "*AdamW*", "trainer/optim/adamw.cc",
        ("vectors decay", "parameter.dim() >= 2 ? config.weight_decay : 0.0", "config.weight_decay")),
]
