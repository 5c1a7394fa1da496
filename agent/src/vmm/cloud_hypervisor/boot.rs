//! From a VMM that has just been started to a machine that runs.
//!
//! In: its API, the descriptions and the tap. Out: a booted machine, or why not. A boot that failed is never tried again in
//! the same VMM: it may have lost its disks on the way and would run without them (notes, section 6.1). Called by the driver.

use std::os::fd::OwnedFd;

use serde_json::{Value, json};

use super::{
    api::{Api, ApiError, Call},
    config::{NetConfig, VmConfig, difference},
};
use crate::{
    ledger::ProcessId,
    vmm::{Press, StartError},
};

/// Tells a VMM what its machine is. After an error the VMM holds no machine and is told to end; its process is for the
/// caller to end.
///
/// # Errors
/// The step that failed, with the VMM's words.
pub async fn describe(
    api: &Api,
    process: ProcessId,
    config: &VmConfig,
    net: &NetConfig,
    tap: OwnedFd,
) -> Result<(), StartError> {
    let result = steps(api, process, config, net, tap).await;
    if result.is_err() {
        abandon(api).await;
    }
    result
}

/// Boots what was described, once. After an error as [`describe`].
///
/// # Errors
/// The VMM's words.
pub async fn boot(api: &Api) -> Result<(), StartError> {
    let booted = api.call(Call::Boot).await;
    if booted.is_err() {
        abandon(api).await;
    }
    booted.map(drop).map_err(|error| failed("boot it", error))
}

async fn steps(
    api: &Api,
    process: ProcessId,
    config: &VmConfig,
    net: &NetConfig,
    tap: OwnedFd,
) -> Result<(), StartError> {
    let ping = api.call(Call::Ping).await.map_err(|error| failed("reach the VMM", error))?;
    if ping.get("pid").and_then(Value::as_i64) != Some(process.pid.into()) {
        let cause = format!("process {} was started, and it says {ping}", process.pid);
        return Err(StartError::Step { step: "reach the VMM".into(), cause });
    }
    let named = |step: &'static str| move |error| failed(step, error);
    // Takes anything that has the form of a configuration; what is wrong in it is found at the boot. A refusal may leave it
    // behind in the VMM, which is one more reason to end that.
    api.give(Call::Create, config, Vec::new()).await.map_err(named("describe the machine"))?;
    // A refused card keeps the descriptor in the VMM for good: the VMM is ended, not asked again.
    api.give(Call::AddNet, net, vec![tap]).await.map_err(named("give it its network card"))?;
    let holds = api.call(Call::Info).await.map_err(named("read back what it is told"))?;
    let mut told = json!(config);
    told["net"] = json!([net]);
    if let Some(text) = difference(&told, holds.get("config").unwrap_or(&Value::Null)) {
        let step = "make sure of what the VMM was told".into();
        return Err(StartError::Step { step, cause: format!("{text}; is this version of it supported?") });
    }
    Ok(())
}

/// Whether a machine of that UUID runs in it: a VMM that an agent left half-way holds none yet.
///
/// # Errors
/// When it gives no answer.
pub async fn runs(api: &Api, system_uuid: &str) -> Result<bool, ApiError> {
    let info = match api.call(Call::Info).await {
        Ok(info) => info,
        // 404: nothing was created.
        Err(ApiError::Refused { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let uuid = info.pointer("/config/platform/system_uuid");
    // After a shutdown the state reads Created again: such a machine does not run.
    let state = info.get("state").and_then(Value::as_str);
    Ok(matches!(state, Some("Running" | "Paused")) && uuid.and_then(Value::as_str) == Some(system_uuid))
}

/// Presses the power button, after letting a paused machine go on: it would not notice. The VMM says yes also where no guest
/// listens, and may end before it says anything: only its process shows what came of it.
pub async fn press_power_button(api: &Api) -> Press {
    let info = api.call(Call::Info).await;
    if info.is_ok_and(|info| info.get("state").and_then(Value::as_str) == Some("Paused"))
        && let Err(error) = api.call(Call::Resume).await
    {
        tracing::warn!("a paused machine does not go on: {error}");
    }
    match api.call(Call::PowerButton).await {
        Ok(_) => Press::Done,
        Err(error) => {
            tracing::info!("the power button had no answer: {error}");
            Press::Unanswered
        }
    }
}

async fn abandon(api: &Api) {
    // Twice as good as once, also without a machine.
    let deleted = api.call(Call::Delete).await.map(drop);
    let ended = api.shutdown().await;
    for error in [deleted, ended].into_iter().filter_map(Result::err) {
        tracing::debug!("ending a VMM after a failed start: {error}");
    }
}

fn failed(step: &str, error: ApiError) -> StartError {
    StartError::Step { step: step.into(), cause: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmm::cloud_hypervisor::fake::{FakeServer, Reply, spec, tap};

    const PROCESS: ProcessId = ProcessId { pid: 4242, start_ticks: 1 };

    async fn boot_with(server: &FakeServer) -> Result<(), StartError> {
        let spec = spec();
        let config = VmConfig::new(&spec, false, "").unwrap();
        let api = Api::new(server.socket());
        describe(&api, PROCESS, &config, &NetConfig::new(&spec), tap()).await?;
        boot(&api).await
    }

    #[tokio::test]
    async fn a_machine_is_created_without_card_given_one_by_descriptor_and_booted() {
        let server = FakeServer::start(PROCESS.pid).await;
        boot_with(&server).await.unwrap();
        assert_eq!(server.calls(), ["vmm.ping", "vm.create", "vm.add-net", "vm.info", "vm.boot"]);
        assert_eq!(server.descriptors(), 1, "the tap came beside the request");
        let uuid = crate::vmm::cloud_hypervisor::config::system_uuid(spec().tag.uuid);
        assert!(runs(&Api::new(server.socket()), &uuid).await.unwrap());
        assert!(!runs(&Api::new(server.socket()), "another").await.unwrap());
    }

    /// A boot that failed on a bad disk, tried again, would give a machine without any disk.
    #[tokio::test]
    async fn after_a_failed_boot_nothing_is_booted_in_that_vmm_again() {
        let server = FakeServer::start(PROCESS.pid).await;
        server.next(
            "vm.boot",
            Reply::refusal(500, &["Error from API", "The VM could not boot", "No such file"]),
        );
        let error = boot_with(&server).await.unwrap_err().to_string();
        assert!(
            error.contains("boot it") && error.contains("The VM could not boot: No such file"),
            "{error}"
        );
        let calls = server.calls();
        assert_eq!(calls[calls.len() - 3..], ["vm.boot", "vm.delete", "vmm.shutdown"]);
        assert_eq!(calls.iter().filter(|call| *call == "vm.boot").count(), 1);
    }

    #[tokio::test]
    async fn refusals_at_every_step_end_the_vmm_and_keep_its_words() {
        for (call, reply, words) in [
            (
                "vm.create",
                Reply::refusal(500, &["Error from API", "VM is already created"]),
                "already created",
            ),
            ("vm.add-net", Reply::refusal(500, &["Device or resource busy (os error 16)"]), "busy"),
            ("vm.add-net", Reply::object(400, "Invalid HTTP Method"), "Invalid HTTP Method"),
            ("vm.boot", Reply::refusal(409, &["Identifier root is not unique"]), "not unique"),
            ("vm.boot", Reply::empty(400), "no reason"),
            ("vm.info", Reply::Hangup, "broke off"),
        ] {
            let server = FakeServer::start(PROCESS.pid).await;
            server.next(call, reply);
            let error = boot_with(&server).await.unwrap_err().to_string();
            assert!(error.contains(words), "{call}: {error}");
            assert_eq!(server.calls().last().map(String::as_str), Some("vmm.shutdown"), "{call}");
        }
    }

    #[tokio::test]
    async fn a_setting_that_the_vmm_ignored_is_noticed_before_the_boot() {
        let server = FakeServer::start(PROCESS.pid).await;
        server.forget("/config/disks/1/rate_limiter_config");
        let error = boot_with(&server).await.unwrap_err().to_string();
        assert!(error.contains("config.disks[1].rate_limiter_config is not there"), "{error}");
        assert!(!server.calls().iter().any(|call| call == "vm.boot"));
    }

    #[tokio::test]
    async fn another_vmm_at_the_socket_is_not_used() {
        let server = FakeServer::start(7).await;
        let error = boot_with(&server).await.unwrap_err().to_string();
        assert!(error.contains("process 4242 was started"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_vmm_that_does_not_answer_is_waited_for_and_named() {
        let server = FakeServer::start(PROCESS.pid).await;
        server.next("vm.info", Reply::Silence);
        let error = Api::new(server.socket()).call(Call::Info).await.unwrap_err().to_string();
        assert_eq!(error, "the VMM did not answer vm.info within 3 s");
    }

    /// HOST-7: a paused machine does not notice its power button; a VMM that ends before it answers has ended.
    #[tokio::test]
    async fn host_7_a_paused_machine_goes_on_before_it_is_to_stop_and_a_vmm_may_end_without_an_answer() {
        let server = FakeServer::start(PROCESS.pid).await;
        boot_with(&server).await.unwrap();
        server.pause();
        assert_eq!(press_power_button(&Api::new(server.socket())).await, Press::Done);
        let calls = server.calls();
        assert_eq!(calls[calls.len() - 3..], ["vm.info", "vm.resume", "vm.power-button"]);
        server.next("vm.power-button", Reply::Hangup);
        assert_eq!(press_power_button(&Api::new(server.socket())).await, Press::Unanswered);
        server.next("vmm.shutdown", Reply::Hangup);
        Api::new(server.socket()).shutdown().await.unwrap();
    }
}
