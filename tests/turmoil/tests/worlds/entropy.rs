//! Randomness from the world's seed. In: a seed, for this thread. Out: every random number that anybody draws on it: the kernel's
//! `getrandom` is the one source of ids, nonces, jitter, hash maps' keys and the order in which the runtime looks at its tasks.

use std::cell::RefCell;

use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

thread_local! {
    static SOURCE: RefCell<Option<StdRng>> = const { RefCell::new(None) };
}

/// From now on this thread draws its random numbers from `seed`. What the thread drew before stays as it is, so a world needs a
/// thread of its own.
pub fn seed_this_thread(seed: u64) {
    SOURCE.set(Some(StdRng::seed_from_u64(seed)));
}

/// Takes the place of the C library's function: 0 is never answered, for a caller would wait for more.
///
/// # Safety
/// As for the one of the C library: `buffer` has room for `length` bytes.
#[allow(unsafe_code)]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut libc::c_void, length: usize, flags: libc::c_uint) -> isize {
    let seeded = SOURCE.try_with(|source| {
        let mut source = source.try_borrow_mut().ok()?;
        let mut bytes = vec![0; length];
        source.as_mut()?.fill_bytes(&mut bytes);
        // SAFETY: the caller says that `length` bytes fit, and our own buffer has as many.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), length) };
        isize::try_from(length).ok()
    });
    match seeded {
        Ok(Some(written)) => written,
        // SAFETY: the same call, of the kernel.
        Ok(None) | Err(_) => unsafe { libc::syscall(libc::SYS_getrandom, buffer, length, flags) as isize },
    }
}
