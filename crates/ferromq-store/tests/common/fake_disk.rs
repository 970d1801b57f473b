//! A disk in memory that loses unflushed data in a crash, and fails on demand.
//!
//! A crash keeps flushed blocks, a random set of other written blocks, and a random prefix of the directory changes
//! that were not synced. After it every operation fails; the test continues with the disk that the crash left.
#![allow(dead_code, missing_docs, unsafe_code, clippy::unwrap_used, clippy::indexing_slicing)]

use std::{
    cell::{Cell, UnsafeCell},
    collections::{BTreeMap, BTreeSet},
    io,
    ops::{Bound, Range},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use ferromq_store::files::{Allocation, Disk, Region, Space};

/// A write reaches the disk in blocks of this size, each completely or not at all.
const BLOCK: usize = 512;
/// The unit that the system keeps in memory.
const PAGE: usize = 4096;

thread_local! {
    /// This thread must not wait for the disk.
    static IN_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work`, which panics if it reads data that is not in memory.
pub fn in_memory<T>(work: impl FnOnce() -> T) -> T {
    IN_MEMORY.set(true);
    let done = work();
    IN_MEMORY.set(false);
    done
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    Create,
    Open,
    Write,
    Flush,
    Rename,
    Remove,
    SyncDir,
    Replace,
    ReadAt,
    ReadFile,
    List,
    CreateDir,
    FreeSpace,
    Lock,
}

type Hook = Arc<dyn Fn(Op, &Path) -> io::Result<()> + Send + Sync>;

struct File {
    bytes: Box<[UnsafeCell<u8>]>,
    state: Mutex<FileState>,
    /// Pages that are not in memory.
    cold: Mutex<BTreeSet<usize>>,
}

#[derive(Default)]
struct FileState {
    durable: Vec<u8>,
    dirty: BTreeSet<usize>,
    /// Blocks with space on the disk, because they were written once.
    touched: BTreeSet<usize>,
}

// SAFETY: the store promises one writer for each byte and no reader before it is published; the disk's own copies are
// made under its lock, which every write holds.
unsafe impl Sync for File {}
// SAFETY: as above.
unsafe impl Send for File {}

impl File {
    fn new(bytes: Vec<u8>, is_durable: bool) -> Arc<Self> {
        let durable = if is_durable { bytes.clone() } else { vec![0; bytes.len()] };
        let touched = if is_durable { (0..=bytes.len() / BLOCK).collect() } else { BTreeSet::new() };
        let state = Mutex::new(FileState { durable, dirty: BTreeSet::new(), touched });
        Arc::new(Self {
            bytes: bytes.into_iter().map(UnsafeCell::new).collect(),
            state,
            cold: Mutex::default(),
        })
    }

    fn warm(&self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let mut cold = self.cold.lock().unwrap();
        for page in range.start / PAGE..=(range.end - 1) / PAGE {
            let was_cold = cold.remove(&page);
            assert!(!was_cold || !IN_MEMORY.get(), "a read of {range:?} waits for the disk");
        }
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
        match self.bytes.get(range) {
            // SAFETY: see `Sync`; UnsafeCell<u8> has the layout of u8.
            Some(cells) => unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) },
            None => &[],
        }
    }

    fn write(&self, at: usize, part: &[u8]) {
        for (cell, byte) in self.bytes[at..at + part.len()].iter().zip(part) {
            // SAFETY: see `Sync`.
            unsafe { *cell.get() = *byte };
        }
        if !part.is_empty() {
            let pages = at / PAGE..=(at + part.len() - 1) / PAGE;
            self.cold.lock().unwrap().retain(|page| !pages.contains(page));
            let mut state = self.state.lock().unwrap();
            let blocks = at / BLOCK..=(at + part.len() - 1) / BLOCK;
            state.dirty.extend(blocks.clone());
            state.touched.extend(blocks);
        }
    }

    fn has_blocks(&self, range: Range<usize>) -> bool {
        let state = self.state.lock().unwrap();
        (range.start / BLOCK..=(range.end - 1) / BLOCK).all(|block| state.touched.contains(&block))
    }

    fn flush(&self, range: Range<usize>) {
        let mut state = self.state.lock().unwrap();
        let FileState { durable, dirty, .. } = &mut *state;
        dirty.retain(|block| {
            let bytes = block * BLOCK..((block + 1) * BLOCK).min(durable.len());
            let is_covered = bytes.start < range.end && bytes.end > range.start;
            if is_covered {
                durable[bytes.clone()].copy_from_slice(self.slice(bytes));
            }
            !is_covered
        });
    }

    /// The disk's content after a crash.
    fn after_crash(&self, random: &mut Random) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let mut bytes = state.durable.clone();
        let keep = random.next() % 4;
        for block in &state.dirty {
            // All, none, or any of them.
            if keep == 0 || (keep < 3 && random.next().is_multiple_of(2)) {
                let range = block * BLOCK..((block + 1) * BLOCK).min(bytes.len());
                bytes[range.clone()].copy_from_slice(self.slice(range));
            }
        }
        bytes
    }
}

/// A small generator, so that a seed determines everything.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_of<const N: usize>(&mut self, choices: [u64; N]) -> u64 {
        choices[self.below(N as u64) as usize]
    }
}

type Names = BTreeMap<PathBuf, Arc<File>>;

enum Change {
    Put(PathBuf, Arc<File>),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
}

impl Change {
    fn apply(&self, names: &mut Names) {
        match self {
            Self::Put(path, file) => {
                names.insert(path.clone(), Arc::clone(file));
            }
            Self::Remove(path) => {
                names.remove(path);
            }
            Self::Rename(from, to) => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }

    fn directory(&self) -> Option<&Path> {
        match self {
            Self::Put(path, _) | Self::Remove(path) | Self::Rename(_, path) => path.parent(),
        }
    }
}

#[derive(Default)]
struct State {
    names: Names,
    /// Names that survive a crash.
    durable: Names,
    pending: Vec<Change>,
    directories: BTreeSet<PathBuf>,
    ops: u64,
    crash_at: Option<(u64, u64)>,
    crashed: Option<FakeDisk>,
    is_locked: bool,
    free: u64,
    is_out_of_space: bool,
    /// Bytes of the whole disk; with 0 none counts as used.
    capacity: u64,
    /// Free space of single directories.
    free_of: BTreeMap<PathBuf, u64>,
}

/// Open files: now, and at most.
#[derive(Default)]
struct Opened {
    now: usize,
    most: usize,
    opened: Vec<(PathBuf, Allocation)>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
    opened: Mutex<Opened>,
}

/// A disk in memory.
#[derive(Clone, Default)]
pub struct FakeDisk(Arc<Shared>);

pub struct FakeRegion {
    disk: FakeDisk,
    path: PathBuf,
    file: Arc<File>,
    is_read_only: bool,
}

impl Drop for FakeRegion {
    fn drop(&mut self) {
        self.disk.0.opened.lock().unwrap().now -= 1;
    }
}

pub struct FakeLock(FakeDisk);

impl Drop for FakeLock {
    fn drop(&mut self) {
        self.0.state().is_locked = false;
    }
}

impl FakeDisk {
    pub fn new() -> Self {
        let disk = Self::default();
        disk.state().free = u64::MAX / 2;
        disk
    }

    /// Makes the disk crash at its `op`-th operation from now on.
    pub fn crash_at(&self, op: u64, seed: u64) {
        let mut state = self.state();
        state.crash_at = Some((state.ops + op, seed));
    }

    /// Crashes now and returns the remaining disk.
    pub fn crash(&self, seed: u64) -> Self {
        let mut state = self.state();
        if state.crashed.is_none() {
            state.crashed = Some(leave_behind(&state, seed));
        }
        state.crashed.clone().unwrap()
    }

    /// What a crash would leave now. This disk continues.
    pub fn after_crash(&self, seed: u64) -> Self {
        leave_behind(&self.state(), seed)
    }

    /// What a kill of the process would leave now, while the machine runs on. This disk continues.
    pub fn after_kill(&self) -> Self {
        let state = self.state();
        let copy = |(path, file): (&PathBuf, &Arc<File>)| {
            let copied = File::new(file.slice(0..file.bytes.len()).to_vec(), true);
            copied.state.lock().unwrap().touched.clone_from(&file.state.lock().unwrap().touched);
            (path.clone(), copied)
        };
        let names: Names = state.names.iter().map(copy).collect();
        let left = Self::new();
        {
            let mut state_left = left.state();
            state_left.durable = names.clone();
            state_left.names = names;
            state_left.directories = state.directories.clone();
        }
        left
    }

    /// From now on no file can be created or extended: only blocks written once can be written. Files of the commit log
    /// have all their blocks.
    pub fn set_out_of_space(&self, is_out: bool) {
        self.state().free = if is_out { 0 } else { u64::MAX / 2 };
        self.state().is_out_of_space = is_out;
    }

    pub fn has_crashed(&self) -> bool {
        self.state().crashed.is_some()
    }

    /// Operations so far.
    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    pub fn set_free(&self, free: u64) {
        self.state().free = free;
    }

    /// Bytes of the whole disk. Bytes that are not free count as used.
    pub fn set_capacity(&self, capacity: u64) {
        self.state().capacity = capacity;
    }

    pub fn free(&self) -> u64 {
        self.state().free
    }

    /// Sets the free space of one directory.
    pub fn set_free_of(&self, directory: &Path, free: u64) {
        self.state().free_of.insert(directory.to_path_buf(), free);
    }

    /// Open files: now, and at most.
    pub fn open_files(&self) -> (usize, usize) {
        let opened = self.0.opened.lock().unwrap();
        (opened.now, opened.most)
    }

    /// Each opening of an existing file, in order.
    pub fn opened(&self) -> Vec<(PathBuf, Allocation)> {
        self.0.opened.lock().unwrap().opened.clone()
    }

    /// Takes all files out of memory.
    pub fn chill(&self) {
        for file in self.state().names.values() {
            *file.cold.lock().unwrap() = (0..file.bytes.len().div_ceil(PAGE)).collect();
        }
    }

    fn region(&self, path: &Path, file: Arc<File>, is_read_only: bool) -> FakeRegion {
        let mut opened = self.0.opened.lock().unwrap();
        opened.now += 1;
        opened.most = opened.most.max(opened.now);
        FakeRegion { disk: self.clone(), path: path.to_path_buf(), file, is_read_only }
    }

    /// Calls `hook` before each operation; it may fail or block it. A write that fails with `WriteZero` writes half of
    /// its bytes.
    pub fn set_hook(&self, hook: impl Fn(Op, &Path) -> io::Result<()> + Send + Sync + 'static) {
        *self.0.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    pub fn clear_hook(&self) {
        *self.0.hook.lock().unwrap() = None;
    }

    /// Bytes of a file as a reader sees them.
    pub fn bytes(&self, path: &Path) -> Option<Vec<u8>> {
        self.state().names.get(path).map(|file| file.slice(0..file.bytes.len()).to_vec())
    }

    /// Changes a byte durably, without the store's knowledge.
    pub fn corrupt(&self, path: &Path, at: usize) {
        let state = self.state();
        let file = &state.names[path];
        let byte = file.slice(at..at + 1)[0];
        file.write(at, &[byte ^ 0x55]);
        file.flush(at..at + 1);
    }

    /// Replaces a file's bytes durably, without the store's knowledge.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.state();
        let file = File::new(bytes.to_vec(), true);
        state.names.insert(path.to_path_buf(), Arc::clone(&file));
        state.durable.insert(path.to_path_buf(), file);
    }

    pub fn forget(&self, path: &Path) {
        let mut state = self.state();
        state.names.remove(path);
        state.durable.remove(path);
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.state().names.keys().cloned().collect()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    fn ask_hook(&self, op: Op, path: &Path) -> io::Result<()> {
        let hook = self.0.hook.lock().unwrap().clone();
        hook.map_or(Ok(()), |hook| hook(op, path))
    }

    /// Begins an operation that changes nothing. Fails it on demand.
    fn look(&self, op: Op, path: &Path) -> io::Result<MutexGuard<'_, State>> {
        self.ask_hook(op, path)?;
        Ok(self.state())
    }

    /// Begins and counts an operation, and locks the disk while it runs. Fails it on demand.
    fn begin(&self, op: Op, path: &Path) -> io::Result<MutexGuard<'_, State>> {
        self.ask_hook(op, path)?;
        let mut state = self.state();
        state.ops += 1;
        if let Some((at, seed)) = state.crash_at
            && state.ops >= at
            && state.crashed.is_none()
        {
            state.crashed = Some(leave_behind(&state, seed));
        }
        if state.crashed.is_some() {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(state)
    }
}

fn leave_behind(state: &State, seed: u64) -> FakeDisk {
    let mut random = Random(seed);
    let mut names = state.durable.clone();
    let kept = random.next() as usize % (state.pending.len() + 1);
    state.pending.iter().take(kept).for_each(|change| change.apply(&mut names));
    let names: Names = names
        .into_iter()
        .map(|(path, file)| (path, File::new(file.after_crash(&mut random), true)))
        .collect();
    let left = FakeDisk::new();
    {
        let mut state_left = left.state();
        state_left.durable = names.clone();
        state_left.names = names;
        state_left.directories = state.directories.clone();
    }
    left
}

impl Disk for FakeDisk {
    type Region = FakeRegion;
    type Lock = FakeLock;
    type Directory = PathBuf;

    fn create(&self, path: &Path, len: u64, allocation: Allocation) -> io::Result<FakeRegion> {
        if allocation == Allocation::ReadOnly {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut state = self.begin(Op::Create, path)?;
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if state.free < len {
            return Err(io::Error::from_raw_os_error(28));
        }
        state.free -= len;
        let file = File::new(vec![0; len as usize], false);
        state.names.insert(path.to_path_buf(), Arc::clone(&file));
        state.pending.push(Change::Put(path.to_path_buf(), Arc::clone(&file)));
        Ok(self.region(path, file, false))
    }

    fn open(&self, path: &Path, allocation: Allocation) -> io::Result<FakeRegion> {
        // Changes nothing, so it works after a crash, as reads do.
        let state = self.look(Op::Open, path)?;
        let file = state.names.get(path).map(Arc::clone).ok_or(io::ErrorKind::NotFound)?;
        self.0.opened.lock().unwrap().opened.push((path.to_path_buf(), allocation));
        Ok(self.region(path, file, allocation == Allocation::ReadOnly))
    }

    fn len(&self, path: &Path) -> io::Result<u64> {
        let state = self.state();
        state.names.get(path).map(|file| file.bytes.len() as u64).ok_or(io::ErrorKind::NotFound.into())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.begin(Op::Remove, path)?;
        let file = state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        state.free += file.bytes.len() as u64;
        state.pending.push(Change::Remove(path.to_path_buf()));
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.begin(Op::Rename, to)?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_path_buf(), file);
        state.pending.push(Change::Rename(from.to_path_buf(), to.to_path_buf()));
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let state = self.look(Op::List, directory)?;
        // Paths below a directory sort after it.
        let from = (Bound::Included(directory), Bound::Unbounded);
        let is_below = |path: &&PathBuf| path.starts_with(directory);
        let names = state.names.range::<Path, _>(from).map(|(path, _)| path).take_while(is_below);
        let directories = state.directories.range::<Path, _>(from).take_while(is_below);
        let children = names.chain(directories).filter_map(|path| {
            let child = path.strip_prefix(directory).ok()?.components().next()?;
            Some(directory.join(child))
        });
        Ok(children.collect::<BTreeSet<_>>().into_iter().collect())
    }

    fn create_dir(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.look(Op::CreateDir, directory)?;
        state.directories.extend(directory.ancestors().map(Path::to_path_buf));
        Ok(())
    }

    fn sync_dir(&self, directory: &Path) -> io::Result<()> {
        let mut state = self.begin(Op::SyncDir, directory)?;
        let State { pending, durable, .. } = &mut *state;
        // Changes are durable in their order: earlier changes of other directories become durable too.
        let last = pending.iter().rposition(|change| change.directory() == Some(directory));
        for change in pending.drain(..last.map_or(0, |last| last + 1)) {
            change.apply(durable);
        }
        Ok(())
    }

    fn open_dir(&self, directory: &Path) -> io::Result<PathBuf> {
        Ok(directory.to_path_buf())
    }

    fn sync_open_dir(&self, directory: &PathBuf) -> io::Result<()> {
        self.sync_dir(directory)
    }

    fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        drop(self.look(Op::ReadFile, path)?);
        self.bytes(path).ok_or(io::ErrorKind::NotFound.into())
    }

    fn replace_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.begin(Op::Replace, path)?;
        if state.is_out_of_space {
            return Err(io::Error::from_raw_os_error(28));
        }
        let file = File::new(bytes.to_vec(), true);
        state.names.insert(path.to_path_buf(), Arc::clone(&file));
        let State { pending, durable, .. } = &mut *state;
        pending.drain(..).for_each(|change| change.apply(durable));
        durable.insert(path.to_path_buf(), file);
        Ok(())
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let state = self.look(Op::FreeSpace, path)?;
        let free = state.free_of.get(path).copied().unwrap_or(state.free);
        Ok(Space { free, used: state.capacity.saturating_sub(state.free) })
    }

    fn lock(&self, path: &Path) -> io::Result<FakeLock> {
        let mut state = self.look(Op::Lock, path)?;
        if state.is_locked {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.is_locked = true;
        Ok(FakeLock(self.clone()))
    }
}

impl Region for FakeRegion {
    fn len(&self) -> u64 {
        self.file.bytes.len() as u64
    }

    fn resident_to(&self, range: Range<u64>) -> u64 {
        let cold = self.file.cold.lock().unwrap();
        let first = cold.range(range.start as usize / PAGE..(range.end as usize).div_ceil(PAGE)).next();
        first.map_or(range.end, |page| range.start.max((page * PAGE) as u64))
    }

    fn read(&self, range: Range<u64>) -> &[u8] {
        self.file.warm(range.start as usize..range.end as usize);
        self.file.slice(range.start as usize..range.end as usize)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let _state = self.disk.look(Op::ReadAt, &self.path)?;
        let at = offset as usize;
        let bytes = self.file.slice(at..at + out.len());
        if bytes.len() != out.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> io::Result<()> {
        if self.is_read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let begun = self.disk.begin(Op::Write, &self.path);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if let Ok(state) = &begun
            && state.is_out_of_space
            && len > 0
            && !self.path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("commitlog"))
            && !self.file.has_blocks(offset as usize..offset as usize + len)
        {
            return Err(io::Error::from_raw_os_error(28));
        }
        let mut room = match &begun {
            Err(error) if error.kind() == io::ErrorKind::WriteZero => len / 2,
            Err(_) => 0,
            Ok(_) => usize::MAX,
        };
        let mut at = offset as usize;
        for part in parts {
            let part = &part[..part.len().min(room)];
            self.file.write(at, part);
            at += part.len();
            room -= part.len();
        }
        begun.map(drop)
    }

    fn flush(&self, range: Range<u64>) -> io::Result<()> {
        let _state = self.disk.begin(Op::Flush, &self.path)?;
        self.file.flush(range.start as usize..range.end as usize);
        Ok(())
    }
}
