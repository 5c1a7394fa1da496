//! What the consensus library runs on: tokio, as the library itself has it, with random numbers from the source that the rest of this
//! program uses. In: nothing. Out: tasks, timers and random waits. Whoever seeds that source (a simulation) has seeded the elections.

use std::{future::Future, time::Duration};

use openraft::{AsyncRuntime, OptionalSend, TokioInstant, TokioRuntime};
use rand_core_06::{Error, RngCore, impls};

/// Tokio with our random numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Runtime;

type Base = TokioRuntime;

impl AsyncRuntime for Runtime {
    type JoinError = <Base as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <Base as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <Base as AsyncRuntime>::Sleep;
    type Instant = TokioInstant;
    type TimeoutError = <Base as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <Base as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Dice;
    type OneshotSender<T: OptionalSend> = <Base as AsyncRuntime>::OneshotSender<T>;
    type OneshotReceiverError = <Base as AsyncRuntime>::OneshotReceiverError;
    type OneshotReceiver<T: OptionalSend> = <Base as AsyncRuntime>::OneshotReceiver<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        Base::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Base::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        Base::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        Base::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        Base::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        Base::is_panic(join_error)
    }

    fn thread_rng() -> Dice {
        Dice
    }

    fn oneshot<T: OptionalSend>() -> (Self::OneshotSender<T>, Self::OneshotReceiver<T>) {
        Base::oneshot()
    }
}

/// This program's random numbers as the library's version of `rand` wants them.
pub(crate) struct Dice;

impl RngCore for Dice {
    fn next_u32(&mut self) -> u32 {
        rand::random()
    }

    fn next_u64(&mut self) -> u64 {
        rand::random()
    }

    fn fill_bytes(&mut self, dest: &mut [u8]) {
        impls::fill_bytes_via_next(self, dest);
    }

    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        self.fill_bytes(dest);
        Ok(())
    }
}
