"""Where each module of the old layout goes."""
ROOMS = {
    **{name: f"base._{name}" for name in (
        "tree patterns arguments unknown_arguments open_files docstrings documents durable tables lines times shown crc32 "
        "crc32c protobufs collector description storage").split()},
    "process": "processes", "board": "processes._heartbeat", "machine": "processes._sensors", "when": "processes._when",
    "launch": "launch", "program": "program", "hlo": "program._hlo", "sharding": "parallel",
    "input": "data", "corpus": "data._corpus", "tokens": "data._tokens",
    "metrics": "observe", "events": "observe._events", "profile": "observe._profile",
    "nn": "nn", "train": "training",
    "checkpoint": "checkpoints", "arrays": "checkpoints._arrays", "formats": "checkpoints._formats",
    "report": "report",
    "engine": "engine", **{name: f"engine._{name}" for name in
        "evaluation experiment trainer deployer predictor predict adapters functions exports".split()},
    **{name: f"lm._{name}" for name in "models generation tuning server".split()},
    "plan": "plan", "replay": "debug", "cli": "cli", "demo": "cli.demo",
}
MODULES = {"program._origin": "debug._origin", "program._level": "debug._level",
  **{f"train.{m}": f"training._pipeline.{m}" for m in "_cut _ring _one_forward_one_backward _pipelined _stage _layers _outside _schedule _schedules".split()},
  **{f"train.{m}": f"training._compile.{m}" for m in "_compile_cache _compiler_options _kept_programs".split()},
}
MODULES.pop("train._layers"); MODULES.pop("train._schedules")
MODULES |= {"train._places": "training._pipeline._stage_arrays",
 "train._given": "training._initial_values", "train._on_board": "training._heartbeat", "train._layers": "training._layers",
 "sharding._given": "parallel._user_rules", "corpus._given": "data._corpus._indexed_source",
 "cli._ask": "cli._run_status", "cli._asked": "cli._checkpoint_option", "cli._launched": "cli._start_time", "cli._vouched": "cli._trust",
 "checkpoint._tier._room": "checkpoints._host_memory._budget", "checkpoint._tier._roll_call": "checkpoints._host_memory._complete_steps",
 "checkpoint._tier._tier": "checkpoints._host_memory._checkpoints", "checkpoint._tier._place": "checkpoints._host_memory._host_directory",
 "nn._proof": "nn._self_check", "nn._shadows": "nn._gradient_carriers", "nn._parts_of_rows": "nn._sequence_parallel",
 "arrays._turned": "checkpoints._arrays._transpose", "arrays._exported": "checkpoints._arrays._export_input",
 "input._ahead": "data._prefetch", "experiment._ahead": "engine._experiment._compile_ahead", "launch._ahead": "launch._precompile",
 "input._together": "data._agreed", "input._turns": "data._turns",
 "models._whole": "lm._models._complete", "engine._left_out": "engine._skipped_batches", "engine._unscored": "engine._retention_warning",
 "engine._unused": "engine._untrained_warning", "engine._go_back": "engine._earlier_steps",
 "server._going": "lm._server._active_requests", "train._waiting": "training._waiting",
 "experiment._exported": "engine._experiment._export_target", "tuning._export": "lm._tuning._export",
}
FOLDERS = {"checkpoint._tier": "checkpoints._host_memory"}  # folders inside of an old room

TOP = {"checkpoint": "Checkpoints", "adapters": "functional", "arrays": "restore", "deployer": "Deployer",
 "engine": "Compile Logging Profile Stop Watchdog", "errors": "MeshwrightError",
 "experiment": "Evaluation Experiment Input Save evaluate run", "input": "batches", "metrics": "Mean",
 "predictor": "Predictor", "sharding": "Layout auto make_mesh", "train": "TrainState fit make_step", "trainer": "Trainer"}
PUBLIC = {  # old room -> (door, names)
 "adapters": ("engine", "Functional"),
 "arrays": ("checkpoints", "LazyArray Source as_source cast concatenate diff load load_lazily renamed restore_lazily stack subtree"),
 "checkpoint": ("checkpoints", "InMemory always best everything keep_any last multiples open_best spaced"),
 "corpus": ("data", "documents files_of"),
 "engine": ("engine", "Outcome Spikes describe early_stopping when_evaluated"),
 "evaluation": ("engine", "Evaluator perplexity token_means"),
 "experiment": ("engine", "EvaluationFunction Generation chain compile_ahead from_checkpoint open_averages replace_prefix truncate truncate_left"),
 "exports": ("engine", "PLATFORMS export load_program"),
 "formats": ("checkpoints", "contents export_npz export_safetensors export_seqax export_t5x find_step flat_tokens is_pinned open_source open_t5x open_tensorflow pin unpin verify verify_all"),
 "generation": ("lm", "Bytes Decoding GrowingText Model count_bytes counting generate generate_batch lm_eval score stream task_scores tokenizer_of without_cache"),
 "hlo": ("observe", "collectives save_hlo"),
 "input": ("data", "Arrays Batched Bucketed local_rows mapped mixture numbered_batches padded_batches text"),
 "launch": ("launch", "launch_ray"),
 "metrics": ("observe", "Values Console Histogram Image behind clearml jsonl logger merge mlflow numbers read_jsonl tee tensorboard trackio wandb"),
 "models": ("lm", "Map Reshape Row Transpose decoder gguf gpt2 hugging_face t5 t5x with_cache"),
 "nn": ("nn", "CachedAttention KeyValueCache Routing attention cross_entropy layers moe"),
 "patterns": ("parallel", "optional"),
 "plan": ("plan", "hardware_named plan published_rates"),
 "process": ("parallel", "barrier detect is_lead signals start"),
 "profile": ("observe", "summarize tracer"),
 "program": ("observe", "count_flops flops peak_flops with_utilisation"),
 "replay": ("debug", "first_nan"),
 "events": ("observe", "read_scalars"),
 "report": ("report", "inline_page read_run"),
 "server": ("lm", "Limits Served application serve"),
 "sharding": ("parallel", "apply_mesh_rules copy_to embedding_lookup fsdp gather_sequence_dim hardware logical match override shard_batch_dim shard_sequence_dim shard_tensor_dim stages"),
 "storage": ("data", "local_copy mirrored"),
 "tokens": ("data", "chat train_tokenizer"),
 "train": ("training", "Loss StatefulLoss user_compile_cache OneForwardOneBackward PHASES Ring Step Trainable Variables abstract_state at_most_ahead by_path check_finite "
   "decay_by_path describe_state ema_params eval_params init_state keep_ema key_of learning_rates mean_plus_std num_params "
   "offload_opt_state remat scale_by_path schedule skip_exploding state_around state_from update_rules watchdog with_parameter_noise"),
 "tree": ("parallel", "leaf_names nbytes"),
 "tuning": ("lm", "adapted dpo export_adapter log_probabilities lora merged_source quantised_init quantised_source read_adapter tune tuning tuning_on with_reference write_best"),
 "when": ("engine", "Tick any_of at every every_minutes never whenever_free"),
}
DOORS = "data parallel training checkpoints observe nn engine lm plan launch debug report".split()
PACKAGES = "base processes launch program parallel data observe nn training checkpoints report engine lm plan debug cli".split()
HEADS = {
"base": """The tools that know no JAX program: names of leaves, patterns, texts, files and stores.

    _tree, _patterns           names of leaves of a tree, and rules for them
    _arguments, …              calls of users' functions with the arguments that they name
    _documents, _durable       safe reading of files, and atomic writing
    _storage/                  one kind of path for directories on this machine and in a store
    _crc32, _crc32c, _protobufs   checksums, and protocol buffers
    _tables, _lines, _times, _shown   texts that fit the terminal
""",
"processes": """All about other processes: start, compare, agree, lock, signals, and who is alive.

    _start, _rendezvous, …     the start of the processes of a run, and their connections
    _compare, _agree           comparing plans before a program runs, and agreement on values
    _lock, _signals, _ends     locked directories, stop signals, and how a process ends
    _when                      policies: functions of the step that all processes answer alike
    _heartbeat/                small files that say which phase and step each process is in
    _sensors/                  readings of this host and its devices: memory, use, temperature, clocks
""",
"launch": """Several processes here, on several machines or on Ray, started again after failures; jobs of SLURM and Kubernetes.

It loads no JAX. A scheduler is a function from a `Job` to the text to submit, as in `_jobset`; a way to start processes
is a `Place` for `_supervise`, as in `_ray`.
""",
"program": """Traced and compiled programs, read: operations, FLOPs, lookups, and communication.

    _program, _primitives, …   a jaxpr as a list of operations, and the table of primitives
    _flops, _peaks             floating-point operations, and their share of the devices' peak
    _hlo/                      compiled programs as files, with their memory traffic and communication
""",
"parallel": """Meshes, rules, layouts, and the inference of rules.

    _mesh, _mesh_rules         meshes from text, and settings by hardware
    _rules, _layout            rules for the names of parameters, and the sharding of each array
    _auto, _trace, …           rules that are inferred from a loss
""",
"data": """Examples and texts in an exact order, which is a function of a counter.

    _batches, _order, …        batches of any kind of examples, mapped, mixed or grouped by length
    _corpus/                   documents in files of every common kind, and a store of their tokens
    _tokens/                   tokenizers, and chats as tokens and weights

`_corpus` and `_tokens` load no JAX.
""",
"observe": """Numbers, trackers and profiles.

    _mean, _kinds, …           values that a step reports
    _console, _jsonl, …        writers, one file for each: a context manager that yields a function of a step and its values
    _events                    TensorBoard's files, read without TensorFlow
    _profile/                  profiles of some steps, and the time in them
""",
"nn": """Functions of models that know the mesh: attention, experts, stacked layers, cross entropy.

Each is here because its obvious form costs too much memory, or cannot be split.
""",
"training": """The state, one step, the loop, and wrappers of optimizers.

    _state, _step, _loss       the state, an update, and its gradients
    _loop, _watchdog           the steps, and the end of a run that hangs
    _ema, _noise, _guard, …    wrappers of optimizers and losses, one file for each
    _pipeline/                 stages of a pipeline and their schedules
    _compile/                  options of the compiler, and compiled programs that are kept

It imports nothing of `data` and nothing of `checkpoints`: the loop gets its batches and a function that saves.
""",
"checkpoints": """Our format of checkpoints, those of other systems, and their arrays.

    _checkpoints, _saving, …   saving in the background, continuing, and retention
    _host_memory/              checkpoints in the memory of hosts
    _format/                   our format
    _arrays/                   named arrays that are read in parts, matched with a state and restored onto any mesh
    _formats/                  checkpoints of other systems: a reader is a file in `_formats/readers`, and an entry of `READERS`
""",
"report": """Pages from the files of runs alone: a page for each run, a comparison, a list.""",
"engine": """A run: its engine, and its two descriptions, `Experiment` and `Trainer`.

    _run, _hooks, _training    the engine: directory, checks, evaluations, the loop, stopping, the record
    _experiment/               the whole description of a run, made into parts for the engine
    _trainer/, _deployer/, _predictor/   RedCoast's three classes on the same engine
    _evaluation/, _predict/    scores of a state over examples, and predictions in order
    _adapters/                 models of Flax and Equinox as plain functions, one file for each library
    _exports/                  programs in one file with their weights
""",
"lm": """Language models: read, write, tune, generate, score, serve.

    _models/                   reference models, one file each, and maps to the names of other libraries
    _generation/               tokens of a model with a cache: greedy, drawn, by beam search, in slots; scores of rows
    _tuning/                   adapters beside frozen weights, weights in eight and four bits, preferences
    _server/                   a model behind HTTP, by OpenAI's protocol
""",
"plan": """Estimates of a step on hardware that is not here, and the search for settings that fit.

`_chips` has the hardware: a `Chip` with the source of its figures.
""",
"debug": """After a fault: a run is played again to its first NaN; a program is killed, continued and compared.""",
}
