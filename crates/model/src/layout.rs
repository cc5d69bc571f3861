//! How known codes name their restart files, and which of these layouts, or which pattern, would fit files that are there.
//!
//! Pure: paths in, a proposal out. [`LAYOUTS`] is the only place that knows a code; a row is the code's own naming in the
//! words of [`crate::naming`]. A code that can write in several ways has a row for each, under one name.

use std::collections::{BTreeMap, BTreeSet};

use crate::naming::{Naming, Pattern, Reading};
use crate::timestep::{Timestep, date_ends, number_ends};

/// How a code names the files of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The code, as `layout=NAME` has it.
    pub name: &'static str,
    /// What is named like this, for people.
    pub about: &'static str,
    /// The patterns, separated by spaces.
    pub naming: &'static str,
    /// Ranks of a complete set, if they don't depend on the job.
    pub ranks: Option<u32>,
    /// Names as the code writes them: two timesteps of one run.
    pub examples: &'static [&'static str],
    /// Where to look the names up. Not every row was compared with it.
    pub source: &'static str,
}

/// The layouts. Of several that fit, an earlier one counts first, so rows whose names say less come later.
pub const LAYOUTS: &[Layout] = &[
    Layout {
        name: "wrf",
        about: "restart files of WRF, one for each domain, or for each domain and process",
        naming: "**/wrfrst_d{rank}_{date} **/wrfrst_d{name}_{date}_{rank}",
        ranks: None,
        examples: &["wrfrst_d01_2016-10-13_00:00:00", "wrfrst_d01_2016-10-13_06_00_00"],
        source: "WRF Users' Guide, running the model with restarts; `nocolons`",
    },
    Layout {
        name: "mpas",
        about: "restart streams of MPAS",
        naming: "**/restart.{date}.nc",
        ranks: None,
        examples: &["restart.2010-10-23_00.00.00.nc", "restart.2010-10-24_00.00.00.nc"],
        source: "MPAS-Atmosphere Users' Guide, configuring model input and output",
    },
    Layout {
        name: "fv3",
        about: "restart files of FV3, GFS and UFS, six tiles of the cube and files beside them",
        naming: "**/{date}.{name}.tile{rank}.nc **/{date}.{name}.res **/{date}.{name}.nc **/MOM.res.{date}.nc **/iced.{date}.nc \
                 **/ufs.cpld.cpl.r.{date}.nc",
        ranks: Some(6),
        examples: &[
            "RESTART/20160101.120000.fv_core.res.tile1.nc",
            "RESTART/20160101.120000.coupler.res",
            "RESTART/MOM.res.2016-01-01-12-00-00.nc",
            "RESTART/iced.2016-01-02-00000.nc",
        ],
        source: "ufs-weather-model, table of restart names in issue 1577",
    },
    Layout {
        name: "cesm",
        about: "restart files of CESM, one or more for each component",
        naming: "**/*.{name}.r.{date}.nc **/*.{name}.r.{date} **/*.{name}.rs.{date}.nc **/*.{name}.rs1.{date}.bin \
                 **/*.{name}.rh0.{date}.nc **/*.{name}.rh1.{date}.nc",
        ranks: None,
        examples: &["CASENAME.cam.r.2020-01-01-00000.nc", "CASENAME.mosart.r.2020-01-02-00000"],
        source: "CESM, files of a restart set (Scientific Reports 11, 92927, table 5)",
    },
    Layout {
        name: "fesom",
        about: "restart files of FESOM2, a file or a folder for each component",
        naming: "**/fesom.{date}.{name}.restart.nc **/fesom.{date}.oce.restart/{name} **/fesom.{date}.ice.restart/{name} \
                 **/fesom.{date}.icepack.restart/{name}",
        ranks: None,
        examples: &["fesom.1958.oce.restart.nc", "fesom.1959-01-01.oce.restart/ssh.nc"],
        source: "FESOM2 documentation, restarts: fesom.yyyy.oce.restart.nc",
    },
    Layout {
        name: "nemo",
        about: "restart files of NEMO, one for each process or one for all, also of its ice model",
        naming: "**/*_{step}_restart_{rank}.nc **/*_{step}_restart_{name}_{rank}.nc **/*_{step}_restart_{name}.nc \
                 **/*_{step}_restart.nc",
        ranks: None,
        examples: &["ORCA2_00000010_restart_0000.nc", "ORCA2_00000240_restart_ice_0001.nc"],
        source: "NEMO manual, cn_ocerst_out and rebuild_nemo",
    },
    Layout {
        name: "icon",
        about: "restart files of ICON",
        naming: "**/*_restart_{name}_{date}.nc **/*_restart_{name}_{date}.mfr/**",
        ranks: None,
        examples: &[
            "exp_restart_ATM_19790101T000000Z.nc",
            "exp_restart_ATM_19790102T000000Z.mfr/patch1_0.nc",
        ],
        source: "ICON tutorial, restart mode",
    },
    Layout {
        name: "geos-chem",
        about: "restart files of GEOS-Chem Classic",
        naming: "**/GEOSChem.Restart.{date}.nc4",
        ranks: None,
        examples: &[
            "Restarts/GEOSChem.Restart.20190801_0000z.nc4",
            "Restarts/GEOSChem.Restart.20190901_0000z.nc4",
        ],
        source: "GEOS-Chem Classic user guide, what is a restart file",
    },
    Layout {
        name: "mitgcm",
        about: "permanent pickups of MITgcm; rolling ones (ckptA, ckptB) tell no timestep",
        naming: "**/pickup.{step}.t{rank}.nc **/pickup_{name}.{step}.t{rank}.nc **/pickup.{step}.{name} \
                 **/pickup_seaice.{step}.{name} **/pickup_ptracers.{step}.{name} **/pickup_ggl90.{step}.{name} \
                 **/pickup_*.{step}.{name} **/pickup.{step}",
        ranks: None,
        examples: &[
            "pickup.0000072000.data",
            "pickup.0000072000.meta",
            "pickup_ggl90.0000000005.001.001.data",
        ],
        source: "MITgcm, write_pickup.F: suffix for pickup file (eg. ckptA or 0000000010)",
    },
    Layout {
        name: "orbax",
        about: "checkpoints of Orbax (JAX, Flax, MaxText)",
        naming: "**/{step}/_CHECKPOINT_METADATA **/{step}/_METADATA **/{step}/default/** **/{step}/state/** **/{step}/params/** **/{step}/items/** \
                 **/{step}/metadata/** **/{step}/*/_METADATA **/{step}/*/ocdbt.process_*/** **/{step}/*/d/**",
        ranks: None,
        examples: &[
            "1000/_CHECKPOINT_METADATA",
            "1000/default/ocdbt.process_0/manifest.ocdbt",
            "2000/state/d/0f3a",
        ],
        source: "Orbax documentation, checkpoint format",
    },
    Layout {
        name: "openfoam",
        about: "time folders of OpenFOAM below a folder for each process",
        naming: "**/processor{rank}/{time}/{name} **/processor{rank}/{time}/**",
        ranks: None,
        examples: &["processor0/0.005/U", "processor1/1e-05/uniform/time"],
        source: "OpenFOAM user guide, running applications in parallel; time directories",
    },
    Layout {
        name: "openfoam",
        about: "time folders of OpenFOAM below one folder for all processes (collated)",
        naming: "**/processors*/{time}/{name} **/processors*/{time}/**",
        ranks: None,
        examples: &["processors4/0.5/U", "processors4/1/uniform/time"],
        source: "OpenFOAM user guide, collated file handling",
    },
    Layout {
        name: "openfoam",
        about: "time folders of OpenFOAM in one process",
        naming: "{time}/{name} {time}/** */{time}/{name} */{time}/**",
        ranks: None,
        examples: &["0.1/U", "0.2/uniform/time"],
        source: "OpenFOAM user guide, time directories",
    },
    Layout {
        name: "enzo",
        about: "data dumps of Enzo",
        naming: "**/DD{step}/*{step}.cpu{rank} **/DD{step}/*{step}.{name} **/DD{step}/*{step}",
        ranks: None,
        examples: &["DD0012/data0012.cpu0003", "DD0012/data0012.hierarchy", "DD0013/DD0013"],
        source: "Enzo user guide, controlling data output",
    },
    Layout {
        name: "cactus",
        about: "checkpoints of Cactus and the Einstein Toolkit (CarpetIOHDF5)",
        naming: "**/checkpoint.chkpt.it_{step}.file_{rank}.h5 **/checkpoint.chkpt.it_{step}.h5",
        ranks: None,
        examples: &["checkpoint.chkpt.it_9876.file_0.h5", "checkpoint.chkpt.it_10000.file_12.h5"],
        source: "Einstein Toolkit, ticket 534 (listing of a checkpoint)",
    },
    Layout {
        name: "flash",
        about: "checkpoints of FLASH",
        naming: "**/*_hdf5_chk_{step}",
        ranks: None,
        examples: &["sedov_hdf5_chk_0000", "sedov_hdf5_chk_0001"],
        source: "FLASH user's guide, output file names",
    },
    Layout {
        name: "amrex",
        about: "checkpoints of AMReX codes (Castro, Nyx, MAESTROeX, WarpX, MFIX-Exa)",
        naming: "**/*chk{step}/{name} **/*chk{step}/**",
        ranks: None,
        examples: &["chk00100/Header", "chk00200/Level_0/Cell_D_00000"],
        source: "AMReX documentation, amr.check_file: prefix chk",
    },
    Layout {
        name: "ramses",
        about: "outputs of RAMSES, one file for each kind and process",
        naming: "**/output_{step}/{name}_{step}.out{rank} **/output_{step}/{name}",
        ranks: None,
        examples: &["output_00001/amr_00001.out00001", "output_00002/info_00002.txt"],
        source: "RAMSES user's guide, output files",
    },
    Layout {
        name: "gadget",
        about: "snapshots of GADGET and AREPO in several files",
        naming: "**/snapdir_{step}/*_{step}.{rank}.hdf5 **/snapdir_{step}/*_{step}.{rank}",
        ranks: None,
        examples: &["snapdir_010/snapshot_010.0.hdf5", "snapdir_011/snapshot_011.1.hdf5"],
        source: "GADGET-4 documentation, snapshot files",
    },
    Layout {
        name: "gadget",
        about: "restart files of GADGET and AREPO, written again under the same names",
        naming: "**/restartfiles/restart.{rank}",
        ranks: None,
        examples: &["output/restartfiles/restart.0", "output/restartfiles/restart.1"],
        source: "GADGET-4 documentation, restarting",
    },
    Layout {
        name: "athena",
        about: "restart files of Athena++ and AthenaK",
        naming: "**/*.{step}.rst",
        ranks: None,
        examples: &["Blast.00010.rst", "Blast.00011.rst"],
        source: "Athena++ documentation, restart file",
    },
    Layout {
        name: "specfem",
        about: "snapshots of SPECFEM3D for undoing attenuation",
        naming: "**/proc{rank}_save_frame_at{step}.bin",
        ranks: None,
        examples: &[
            "DATABASES_MPI/proc000000_save_frame_at000100.bin",
            "DATABASES_MPI/proc000001_save_frame_at000200.bin",
        ],
        source: "SPECFEM3D, save_forward_arrays_undoatt",
    },
    Layout {
        name: "specfem",
        about: "the last wave field of SPECFEM3D, written again under the same names",
        naming: "**/proc{rank}_save_forward_arrays.bin **/dump_all_arrays{rank}",
        ranks: None,
        examples: &[
            "DATABASES_MPI/proc000000_save_forward_arrays.bin",
            "DATABASES_MPI/dump_all_arrays000001",
        ],
        source: "SPECFEM3D and SPECFEM3D_GLOBE, save_forward_arrays",
    },
    Layout {
        name: "bout",
        about: "restart files of BOUT++, written again under the same names",
        naming: "**/BOUT.restart.{rank}.nc",
        ranks: None,
        examples: &["data/BOUT.restart.0.nc", "data/BOUT.restart.1.nc"],
        source: "BOUT++ manual, restarting runs",
    },
    Layout {
        name: "su2",
        about: "restart files of SU2 in unsteady runs",
        naming: "**/restart_*_{step}.dat **/restart_*_{step}.csv",
        ranks: None,
        examples: &["restart_flow_00010.dat", "restart_flow_00011.dat"],
        source: "SU2 documentation, restart files",
    },
    Layout {
        name: "namd",
        about: "restart files of NAMD with `restartsave on`",
        naming: "**/*.restart.{step}.coor **/*.restart.{step}.vel **/*.restart.{step}.xsc",
        ranks: None,
        examples: &["apoa1.restart.1000.coor", "apoa1.restart.2000.xsc"],
        source: "NAMD user guide, restartname and restartsave",
    },
    Layout {
        name: "namd",
        about: "restart files of NAMD, written again under the same names",
        naming: "**/*.restart.coor **/*.restart.vel **/*.restart.xsc",
        ranks: None,
        examples: &["apoa1.restart.coor", "apoa1.restart.vel"],
        source: "NAMD user guide, restartname",
    },
    Layout {
        name: "amber",
        about: "numbered restart files of AMBER (`ntwr` below zero)",
        naming: "**/restrt_{step} **/*.rst7_{step} **/*.ncrst_{step} **/*.rst_{step}",
        ranks: None,
        examples: &["restrt_5000", "md.ncrst_10000"],
        source: "AMBER manual, ntwr: restrt_<nstep>",
    },
    Layout {
        name: "amber",
        about: "restart file of AMBER, written again under the same name",
        naming: "**/restrt **/*.rst7 **/*.ncrst",
        ranks: None,
        examples: &["restrt", "md.rst7"],
        source: "AMBER manual, restrt",
    },
    Layout {
        name: "vasp",
        about: "wave functions, charge density and positions of VASP, written again under the same names",
        naming: "**/WAVECAR **/CHGCAR **/CONTCAR",
        ranks: None,
        examples: &["WAVECAR", "CHGCAR"],
        source: "VASP wiki, files that a calculation starts from",
    },
    Layout {
        name: "cp2k",
        about: "restart history of CP2K",
        naming: "**/*-1_{step}.restart",
        ranks: None,
        examples: &["cp2k-1_500.restart", "cp2k-1_1000.restart"],
        source: "CP2K manual, MOTION/PRINT/RESTART_HISTORY",
    },
    Layout {
        name: "cp2k",
        about: "restart file of CP2K, written again under the same name",
        naming: "**/*-1.restart",
        ranks: None,
        examples: &["cp2k-1.restart"],
        source: "CP2K manual, MOTION/PRINT/RESTART",
    },
    Layout {
        name: "fds",
        about: "restart files of FDS, one for each mesh from 1 on, written again under the same names",
        naming: "**/*_{rank}.restart",
        ranks: None,
        examples: &["couch_1.restart", "couch_2.restart"],
        source: "FDS user's guide, stopping and restarting calculations: CHID_n.restart",
    },
    Layout {
        name: "gromacs",
        about: "numbered checkpoints of GROMACS (`mdrun -cpnum`)",
        naming: "**/*_step{step}.cpt",
        ranks: None,
        examples: &["state_step1000.cpt", "state_step2000.cpt"],
        source: "GROMACS manual, gmx mdrun -cpnum",
    },
    Layout {
        name: "gromacs",
        about: "checkpoints of GROMACS, written again under the same name",
        naming: "**/*.cpt",
        ranks: None,
        examples: &["state.cpt", "md.cpt"],
        source: "GROMACS manual, gmx mdrun -cpo",
    },
    Layout {
        name: "quantum-espresso",
        about: "folder of Quantum ESPRESSO, written again under the same names",
        naming: "**/*.save/{name}",
        ranks: None,
        examples: &["out/pwscf.save/data-file-schema.xml", "out/pwscf.save/charge-density.dat"],
        source: "Quantum ESPRESSO, pw.x: outdir/prefix.save",
    },
    Layout {
        name: "hf-trainer",
        about: "checkpoint folders of the Hugging Face Trainer, also with DeepSpeed or FSDP below",
        naming: "**/checkpoint-{step}/{name}-{rank}-of-{ranks}.safetensors **/checkpoint-{step}/{name}-{rank}-of-{ranks}.bin \
                 **/checkpoint-{step}/rng_state_{rank}.pth **/checkpoint-{step}/{name} **/checkpoint-{step}/**",
        ranks: None,
        examples: &[
            "out/checkpoint-500/model-00001-of-00003.safetensors",
            "out/checkpoint-500/rng_state_0.pth",
            "out/checkpoint-1000/trainer_state.json",
            "out/checkpoint-1000/global_step1000/mp_rank_00_model_states.pt",
        ],
        source: "Transformers documentation, Trainer: checkpoints",
    },
    Layout {
        name: "deepspeed",
        about: "checkpoints of DeepSpeed",
        naming: "**/global_step{step}/*zero_pp_rank_{rank}_mp_rank_{name} **/global_step{step}/{name}",
        ranks: None,
        examples: &[
            "global_step100/mp_rank_00_model_states.pt",
            "global_step200/zero_pp_rank_0_mp_rank_00_optim_states.pt",
            "global_step200/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        ],
        source: "DeepSpeed documentation, model checkpointing",
    },
    Layout {
        name: "megatron",
        about: "checkpoints of Megatron-LM",
        naming: "**/iter_{step}/mp_rank_{rank}/{name} **/iter_{step}/mp_rank_{name}/* **/iter_{step}/__{rank}_*.distcp \
                 **/iter_{step}/{name} **/iter_{step}/**",
        ranks: None,
        examples: &["iter_0002000/mp_rank_00/model_optim_rng.pt", "iter_0004000/__0_1.distcp"],
        source: "Megatron-LM, checkpointing.py",
    },
    Layout {
        name: "dcp",
        about: "folders of PyTorch's distributed checkpoint (torchtitan, FSDP)",
        naming: "**/*step={step}*/__{rank}_*.distcp **/*step={step}*/.metadata **/*{step}*/__{rank}_*.distcp \
                 **/*{step}*/.metadata",
        ranks: None,
        examples: &[
            "checkpoint/step-100/__0_0.distcp",
            "checkpoint/step-200/.metadata",
            "epoch=0-step=300.ckpt/__1_0.distcp",
        ],
        source: "PyTorch documentation, torch.distributed.checkpoint",
    },
    Layout {
        name: "lightning",
        about: "checkpoints of PyTorch Lightning and NeMo",
        naming: "**/*step={step}.ckpt **/*step={step}-*.ckpt",
        ranks: None,
        examples: &["epoch=3-step=1000.ckpt", "epoch=4-step=2000.ckpt"],
        source: "PyTorch Lightning documentation, ModelCheckpoint",
    },
    Layout {
        name: "tensorflow",
        about: "checkpoints of TensorFlow",
        naming: "**/{name}-{step}.data-{rank}-of-{ranks} **/{name}-{step}.index **/{name}-{step}.meta",
        ranks: None,
        examples: &["model.ckpt-1000.data-00000-of-00001", "model.ckpt-2000.index"],
        source: "TensorFlow guide, training checkpoints",
    },
    Layout {
        name: "safetensors",
        about: "folders of safetensors shards, the step at the end of the folder's name",
        naming: "**/*{step}/{name}-{rank}-of-{ranks}.safetensors **/*{step}/{name}.safetensors **/*{step}/{name}.json",
        ranks: None,
        examples: &["step_100/model-00001-of-00003.safetensors", "step_200/model-00003-of-00003.safetensors"],
        source: "huggingface_hub documentation, sharded checkpoints",
    },
    Layout {
        name: "safetensors",
        about: "safetensors shards, written again under the same names",
        naming: "**/{name}-{rank}-of-{ranks}.safetensors",
        ranks: None,
        examples: &["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
        source: "huggingface_hub documentation, sharded checkpoints",
    },
    Layout {
        name: "lammps",
        about: "restart files of LAMMPS, one for each process (`restart.*.%`)",
        naming: "**/*restart.{step}.{rank} **/*restart.{step}.base",
        ranks: None,
        examples: &["restart.1000.0", "restart.2000.base"],
        source: "LAMMPS documentation, restart and write_restart commands: % becomes base and the processor",
    },
    Layout {
        name: "lammps",
        about: "restart files of LAMMPS, one for each process (`restart.%.*`)",
        naming: "**/*restart.{rank}.{step} **/*restart.base.{step}",
        ranks: None,
        examples: &["restart.0.1000", "restart.base.2000"],
        source: "LAMMPS documentation, restart and write_restart commands: % becomes base and the processor",
    },
    Layout {
        name: "lammps",
        about: "restart files of LAMMPS, one for all processes",
        naming: "**/*restart.{step} **/*restart.{step}.*",
        ranks: None,
        examples: &["poly.restart.1000", "restart.2000.equil", "poly.restart.3000.mpiio"],
        source: "LAMMPS documentation, restart command: poly.restart, restart.*.equil",
    },
];

/// Most paths that a proposal looks at: names repeat long before.
pub const PATHS_MAX: usize = 20_000;
/// Most patterns of a proposal that isn't a known layout.
const PATTERNS_PROPOSED_MAX: usize = 8;

/// What would make checkpoint sets of files that are there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The layout of a known code; `None`: the patterns were made from the names.
    pub layout: Option<&'static Layout>,
    /// The patterns, separated by spaces.
    pub naming: String,
    /// Ranks of a complete set; `None`: they are learned.
    pub ranks: Option<u32>,
    /// Why, for people.
    pub why: String,
}

/// The names of all layouts, once each.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = LAYOUTS.iter().map(|layout| layout.name).collect();
    names.dedup();
    names
}

/// The layout of a code that fits most of the files, or its first one; `None`: no such code is known.
pub fn of_code(name: &str, paths: &[&str]) -> Option<Proposal> {
    let mut rows: Vec<(usize, &Layout)> = LAYOUTS
        .iter()
        .filter(|layout| layout.name == name)
        .map(|layout| (fitting(layout.naming, paths), layout))
        .collect();
    rows.sort_by_key(|(fitting, _)| std::cmp::Reverse(*fitting));
    rows.first().map(|(_, layout)| of_layout(layout, paths))
}

/// The layout, or else patterns, that would make sets of the files; `None`: nothing would.
pub fn proposed(paths: &[&str]) -> Option<Proposal> {
    let paths = paths.get(..paths.len().min(PATHS_MAX)).unwrap_or(paths);
    let counts: Vec<usize> = LAYOUTS.iter().map(|layout| fitting(layout.naming, paths)).collect();
    let best = counts.iter().copied().max().unwrap_or(0);
    let mut fitting_well =
        LAYOUTS.iter().zip(&counts).filter(|(_, count)| **count > 0 && 2 * **count >= best);
    let known = fitting_well.next().and_then(|(layout, _)| of_code(layout.name, paths));
    known.or_else(|| from_names(paths))
}

/// How many files a layout gives a place in a set.
fn fitting(naming: &str, paths: &[&str]) -> usize {
    let Ok(naming) = naming.parse::<Naming>() else { return 0 };
    paths.iter().filter(|path| naming.read(path).is_some()).count()
}

fn of_layout(layout: &'static Layout, paths: &[&str]) -> Proposal {
    let naming = layout.naming.split_whitespace().collect::<Vec<_>>().join(" ");
    let (ranks, seen) = seen(&naming, paths);
    let why = match seen.is_empty() {
        true => layout.about.to_owned(),
        false => format!("{}; {seen}", layout.about),
    };
    Proposal { layout: Some(layout), naming, ranks: ranks.or(layout.ranks), why }
}

/// The ranks of a set, if two timesteps have the same number of them and none has more, and what patterns find.
fn seen(naming: &str, paths: &[&str]) -> (Option<u32>, String) {
    let Ok(naming) = naming.parse::<Naming>() else { return (None, String::new()) };
    let readings: Vec<Reading> = paths.iter().filter_map(|path| naming.read(path)).collect();
    let steps: BTreeSet<Timestep> = readings.iter().filter_map(|reading| reading.step).collect();
    let mut ranks: BTreeMap<Timestep, BTreeSet<u64>> = BTreeMap::new();
    for reading in readings.iter().filter(|reading| reading.ranks.is_none()) {
        if let (Some(step), Some(rank)) = (reading.step, reading.rank) {
            ranks.entry(step).or_default().insert(rank);
        }
    }
    let most = ranks.values().map(BTreeSet::len).max().unwrap_or(0);
    let agree = ranks.values().filter(|ranks| ranks.len() == most).count();
    let declared = u32::try_from(most).ok().filter(|most| *most > 0 && agree > 1);
    let mut text = Vec::new();
    if !readings.is_empty() {
        text.push(format!("{} of {} files fit", readings.len(), paths.len()));
    }
    if let (Some(first), Some(last)) = (steps.first(), steps.last()) {
        text.push(format!("{} timesteps from {first} to {last}", steps.len()));
    }
    if let Some(ranks) = declared {
        text.push(format!("{ranks} ranks in {agree} of them"));
    }
    (declared, text.join(", "))
}

// --- patterns from names

/// A part of a name: what stands between numbers, or a number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Token<'a> {
    Text(&'a str),
    Number(&'a str),
    Time(&'a str),
    Date(&'a str),
}

/// What takes the place of a number in a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Same,
    Step,
    Rank,
    Any,
}

/// Words before a number that say that it counts ranks.
const RANK_WORDS: [&str; 12] =
    ["rank", "proc", "processor", "cpu", "tile", "node", "part", "mesh", "domain", "shard", "task", "pe"];
/// Words before a number that say that it counts steps.
const STEP_WORDS: [&str; 12] = [
    "step",
    "it",
    "iter",
    "iteration",
    "chk",
    "ckpt",
    "checkpoint",
    "restart",
    "epoch",
    "cycle",
    "time",
    "dump",
];

fn tokens<'a>(path: &'a str) -> Vec<Token<'a>> {
    let mut found = Vec::new();
    let (mut at, mut text_from) = (0, 0);
    while let Some(rest) = path.get(at..).filter(|rest| !rest.is_empty()) {
        let starts_name = at == 0 || path.get(..at).is_some_and(|before| before.ends_with('/'));
        let time = number_ends(rest, true).first().copied().filter(|end| {
            starts_name
                && rest.get(*end..).is_some_and(|behind| behind.starts_with('/'))
                && rest.get(..*end).is_some_and(|time| time.contains(['.', 'e', 'E']))
        });
        let date = || date_ends(rest).first().copied().filter(|end| *end >= 8 && starts_date(path, at));
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (end, make): (usize, fn(&'a str) -> Token<'a>) = match (time, date()) {
            (Some(end), _) => (end, Token::Time),
            (None, Some(end)) => (end, Token::Date),
            _ if digits > 0 => (digits, Token::Number),
            _ => {
                at += rest.chars().next().map_or(1, char::len_utf8);
                continue;
            }
        };
        found.extend(path.get(text_from..at).filter(|text| !text.is_empty()).map(Token::Text));
        found.extend(path.get(at..at + end).map(make));
        at += end;
        text_from = at;
    }
    found.extend(path.get(text_from..).filter(|text| !text.is_empty()).map(Token::Text));
    found
}

/// Whether a date can begin at `at`: eight digits or more of it that aren't part of a longer number.
fn starts_date(path: &str, at: usize) -> bool {
    !path.get(..at).is_some_and(|before| before.ends_with(|letter: char| letter.is_ascii_digit()))
}

/// Names that differ in their numbers alone.
type Shape<'a> = Vec<Option<&'a str>>;

fn shape<'a>(tokens: &[Token<'a>]) -> Shape<'a> {
    let part = |token: &Token<'a>| match token {
        Token::Text(text) => Some(*text),
        Token::Number(_) => None,
        Token::Time(_) => Some("{time}"),
        Token::Date(_) => Some("{date}"),
    };
    tokens.iter().map(part).collect()
}

fn from_names(paths: &[&str]) -> Option<Proposal> {
    let mut shapes: BTreeMap<Shape<'_>, Vec<Vec<Token<'_>>>> = BTreeMap::new();
    for path in paths {
        let tokens = tokens(path);
        if tokens.iter().any(|token| !matches!(token, Token::Text(_))) {
            shapes.entry(shape(&tokens)).or_default().push(tokens);
        }
    }
    let most = shapes.values().map(Vec::len).max().filter(|most| *most > 1)?;
    let mut largest: Vec<&Vec<Vec<Token<'_>>>> =
        shapes.values().filter(|names| 4 * names.len() >= most.max(8)).collect();
    largest.sort_by_key(|names| std::cmp::Reverse(names.len()));
    let mut patterns: Vec<String> =
        largest.into_iter().take(PATTERNS_PROPOSED_MAX).filter_map(|names| pattern(names)).collect();
    patterns.dedup();
    let naming = patterns.join(" ");
    let parsed: Naming = naming.parse().ok().filter(|_| !naming.is_empty())?;
    if !parsed.patterns().iter().all(Pattern::has_timestep) {
        return None;
    }
    let (ranks, seen) = seen(&naming, paths);
    Some(Proposal { layout: None, naming, ranks, why: format!("made from the names: {seen}") })
}

/// The pattern of names of one shape; `None`: nothing varies that can be a timestep.
fn pattern(names: &[Vec<Token<'_>>]) -> Option<String> {
    let first = names.first()?;
    let column = |index: usize| -> Vec<&str> {
        let texts = names.iter().filter_map(|name| match name.get(index) {
            Some(Token::Number(text) | Token::Time(text) | Token::Date(text)) => Some(*text),
            _ => None,
        });
        texts.collect()
    };
    let has_time = first.iter().any(|token| matches!(token, Token::Time(_) | Token::Date(_)));
    let varying: Vec<usize> = (0..first.len())
        .filter(|index| matches!(first.get(*index), Some(Token::Number(_))))
        .filter(|index| column(*index).iter().collect::<BTreeSet<_>>().len() > 1)
        .collect();
    let word = |index: usize| match index.checked_sub(1).and_then(|before| first.get(before)) {
        Some(Token::Text(text)) => {
            let text = text.trim_end_matches(|letter: char| !letter.is_alphabetic());
            text.rsplit(|letter: char| !letter.is_alphabetic()).next().unwrap_or("").to_ascii_lowercase()
        }
        _ => String::new(),
    };
    let is_rank = |index: usize| RANK_WORDS.contains(&word(index).as_str());
    let is_step = |index: usize| STEP_WORDS.contains(&word(index).as_str());
    let largest = |index: usize| column(index).iter().filter_map(|text| text.parse::<u64>().ok()).max();
    let candidates = || varying.iter().copied().filter(|index| !is_rank(*index));
    let step = match has_time {
        true => None,
        // Of several, the one that is called a step; else the one that counts furthest.
        false => Some(
            candidates()
                .find(|index| is_step(*index))
                .or_else(|| candidates().max_by_key(|index| largest(*index)))?,
        ),
    };
    let equals = |index: usize| step.is_some_and(|step| column(index) == column(step));
    let others: Vec<usize> = varying.iter().copied().filter(|index| !equals(*index)).collect();
    let rank = others.iter().copied().find(|index| is_rank(*index)).or_else(|| others.last().copied());
    let role = |index: usize| match index {
        _ if !varying.contains(&index) => Role::Same,
        _ if equals(index) => Role::Step,
        _ if Some(index) == rank => Role::Rank,
        _ => Role::Any,
    };
    let text = first.iter().enumerate().map(|(index, token)| match token {
        Token::Text(text) => *text,
        Token::Time(_) => "{time}",
        Token::Date(_) => "{date}",
        Token::Number(number) => match role(index) {
            Role::Same => *number,
            Role::Step => "{step}",
            Role::Rank => "{rank}",
            Role::Any => "*",
        },
    });
    let text: String = text.collect();
    // Blanks separate patterns, and braces and stars in names have no way to be written.
    let is_plain =
        !first.iter().any(|token| matches!(token, Token::Text(text) if text.contains([' ', '{', '}', '*'])));
    is_plain.then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_each_code_are_read_by_its_layout_and_auto_finds_it() {
        for layout in LAYOUTS {
            let naming: Naming =
                layout.naming.parse().unwrap_or_else(|error| panic!("{}: {error}", layout.name));
            for example in layout.examples {
                let reading = naming.read(example).unwrap_or_else(|| panic!("{}: {example}", layout.name));
                let has_step = naming.patterns()[reading.pattern].has_timestep();
                assert_eq!(reading.step.is_some(), has_step, "{}: {example}", layout.name);
                let above = format!("run7/{example}");
                let is_serial_foam = layout.naming.starts_with("{time}");
                assert!(is_serial_foam || naming.read(&above).is_some(), "{}: {above}", layout.name);
            }
            let proposal = proposed(layout.examples).unwrap();
            let found = proposal.layout.unwrap();
            assert_eq!((found.name, found.about), (layout.name, layout.about));
            assert_eq!(of_code(layout.name, layout.examples).unwrap().layout, Some(layout));
            assert!(!layout.source.is_empty() && !layout.about.is_empty());
        }
        assert_eq!(of_code("nosuch", &[]), None);
        let sorted: BTreeSet<&str> = names().into_iter().collect();
        assert_eq!(sorted.len(), names().len(), "rows of one code stand together");
    }

    #[test]
    fn the_documents_list_every_layout() {
        let document = include_str!("../../../docs/OPERATIONS.md");
        for name in names() {
            assert!(document.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }

    fn step_of(code: &str, path: &str) -> Option<String> {
        let proposal = of_code(code, &[path]).unwrap();
        let reading = proposal.naming.parse::<Naming>().unwrap().read(path)?;
        Some(format!(
            "{}/{}",
            reading.step.map_or("-".to_owned(), |step| step.to_string()),
            reading.rank.map_or("-".to_owned(), |rank| rank.to_string())
        ))
    }

    #[test]
    fn timesteps_and_ranks_are_those_that_the_code_means() {
        for (code, path, expected) in [
            ("wrf", "wrfrst_d02_2016-10-13_00:00:00", "2016-10-13_00:00:00/2"),
            ("wrf", "wrfrst_d01_2021-01-02_00_00_00", "2021-01-02_00_00_00/1"),
            ("wrf", "wrfrst_d01_2016-10-13_00:00:00_0003", "2016-10-13_00:00:00/3"),
            ("fv3", "RESTART/20160101.120000.sfc_data.tile6.nc", "20160101.120000/6"),
            ("cesm", "f.e21.FHIST.f09.011.cam_0080.rs.2020-01-01-00000.nc", "2020-01-01-00000/-"),
            ("icon", "exp_restart_ATM_19790101T000000Z.nc", "19790101T000000Z/-"),
            ("openfoam", "case/processor3/0.005/p", "0.005/3"),
            ("openfoam", "0.25/U", "0.25/-"),
            ("dcp", "epoch=3-step=100.ckpt/__2_0.distcp", "100/2"),
            ("dcp", "0000400.net_optim/__3_0.distcp", "0000400/3"),
            ("lammps", "restart.0.1000", "0/1000"),
            ("namd", "a.restart.coor", "-/-"),
        ] {
            assert_eq!(step_of(code, path).as_deref(), Some(expected), "{code}: {path}");
        }
        for (code, path) in [
            ("cactus", "checkpoint.chkpt.tmp.it_9876.file_0.h5"),
            ("mitgcm", "pickup.ckptA.data"),
            ("openfoam", "postProcessing/probes/0/U"),
            ("namd", "a.restart.coor.old"),
        ] {
            assert_eq!(step_of(code, path), None, "{code}: {path}");
        }
    }

    #[test]
    fn names_that_codes_were_seen_to_write_are_proposed_with_the_sets_that_they_mean() {
        type Set = (&'static str, &'static [(&'static str, &'static str)]);
        let sets: &[Set] = &[
            (
                "cesm",
                &[("case.cam.r.0001-01-06-00000.nc", "0001-01-06-00000/-"), ("case.cam.h0.0001-01.nc", "no")],
            ),
            (
                "nemo",
                &[
                    ("ORCA_00000240_restart_0003.nc", "00000240/3"),
                    ("ORCA_00000240_restart_trc_0003.nc", "00000240/3"),
                ],
            ),
            (
                "specfem",
                &[
                    ("DATABASES_MPI/dump_all_arrays000000", "-/0"),
                    ("DATABASES_MPI/dump_all_arrays000001", "-/1"),
                ],
            ),
            ("athena", &[("cr.00012.rst", "00012/-"), ("cr.final.rst", "no")]),
            ("flash", &[("rt_hdf5_chk_0001", "0001/-"), ("rt_hdf5_plt_cnt_0001", "no")]),
            ("gadget", &[("snapdir_005/snapshot_005.3.hdf5", "005/3")]),
            ("vasp", &[("relax/WAVECAR", "-/-"), ("relax/CHGCAR", "-/-"), ("relax/INCAR", "no")]),
            ("amber", &[("restrt_5000", "5000/-"), ("restrt_10000", "10000/-"), ("prod.nc", "no")]),
            (
                "amrex",
                &[
                    ("sub_chk00100/Header", "00100/-"),
                    ("sub_chk00100/Level_0/SD_0_New_MF_D_00001", "00100/-"),
                ],
            ),
            (
                "lightning",
                &[("a/checkpoints/epoch=3-step=400.ckpt", "400/-"), ("epoch=3-step=400-v1.ckpt", "400/-")],
            ),
            (
                "orbax",
                &[
                    ("ckpt/1000/default/ocdbt.process_0/d/0f3a", "1000/-"),
                    ("ckpt/1000/_CHECKPOINT_METADATA", "1000/-"),
                ],
            ),
            ("bout", &[("data/BOUT.restart.0.nc", "-/0"), ("data/BOUT.restart.1.nc", "-/1")]),
            // Digits of a format's name are no timestep, and four digits in front of any ending are no date.
            (
                "",
                &[
                    ("out/checkpoint_001000.bp5/data.0", "001000/-"),
                    ("out/checkpoint_002000.bp5/data.0", "002000/-"),
                ],
            ),
            ("", &[("hdf5/Chk_000100.3d.hdf5", "000100/-"), ("hdf5/Chk_000200.3d.hdf5", "000200/-")]),
            ("", &[("0003.sdf", "0003/-"), ("0004.sdf", "0004/-")]),
            ("", &[("checkpoint_0100/shard_0.pt", "0100/0"), ("checkpoint_0200/shard_1.pt", "0200/1")]),
        ];
        for (code, names) in sets {
            let paths: Vec<&str> = names.iter().map(|(path, _)| *path).collect();
            let proposal = proposed(&paths).unwrap_or_else(|| panic!("{paths:?}"));
            assert_eq!(proposal.layout.map_or("", |layout| layout.name), *code, "{paths:?}");
            let naming: Naming = proposal.naming.parse().unwrap();
            for (path, expected) in *names {
                let read = naming.read(path).map_or("no".to_owned(), |reading| {
                    let step = reading.step.map_or("-".to_owned(), |step| step.to_string());
                    format!("{step}/{}", reading.rank.map_or("-".to_owned(), |rank| rank.to_string()))
                });
                assert_eq!(read, *expected, "{path}");
            }
        }
    }

    #[test]
    fn ranks_are_proposed_when_two_timesteps_agree() {
        let names: Vec<String> = [100, 200]
            .iter()
            .flat_map(|step| (1..=3).map(move |mesh| format!("DD{step}/data{step}.cpu{mesh}")))
            .collect();
        let paths: Vec<&str> = names.iter().map(String::as_str).collect();
        let proposal = proposed(&paths).unwrap();
        assert_eq!((proposal.layout.unwrap().name, proposal.ranks), ("enzo", Some(3)));
        assert!(
            proposal.why.contains("6 of 6 files fit, 2 timesteps from 100 to 200, 3 ranks in 2 of them"),
            "{}",
            proposal.why
        );
        assert_eq!(proposed(&paths[..3]).unwrap().ranks, None, "one timestep may be half written");
        assert_eq!(of_code("fv3", &[]).unwrap().ranks, Some(6));
    }

    #[test]
    fn names_of_no_known_code_give_a_pattern() {
        for (paths, naming) in [
            (&["field.100.0", "field.100.1", "field.200.0", "field.200.1"][..], "field.{step}.{rank}"),
            (
                &["rank0/state.100", "rank1/state.100", "rank0/state.200", "rank1/state.200"],
                "rank{rank}/state.{step}",
            ),
            (&["ocean_2016-10-13.bin", "ocean_2016-10-14.bin"], "ocean_{date}.bin"),
            (&["0.5/a/x.7.bin", "0.25/a/x.7.bin"], "{time}/a/x.7.bin"),
            (&["run7/cycle1/save1.dat", "run7/cycle2/save2.dat"], "run7/cycle{step}/save{step}.dat"),
        ] {
            let proposal = from_names(paths).unwrap();
            assert_eq!(proposal.naming, naming);
            assert_eq!(fitting(naming, paths), paths.len());
        }
        for paths in [&["notes.txt", "log"][..], &["a1"], &[], &["é b1", "é b2"]] {
            assert_eq!(from_names(paths), None, "{paths:?}");
        }
    }

    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_names_are_looked_at_without_a_panic(names in prop::collection::vec("[a-c0-9._/é {}*=-]{0,24}", 0..12)) {
            let paths: Vec<&str> = names.iter().map(String::as_str).collect();
            if let Some(proposal) = proposed(&paths) {
                prop_assert!(proposal.naming.parse::<Naming>().is_ok());
            }
            if let Some(proposal) = from_names(&paths) {
                prop_assert!(fitting(&proposal.naming, &paths) > 0);
            }
        }
    }
}
