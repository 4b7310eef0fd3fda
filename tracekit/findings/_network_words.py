"""Words about the network: what logs of the communication library tell, and what to try next."""

from __future__ import annotations

from collections.abc import Mapping

from tracekit.findings._mark import mark as _

__all__ = ["NETWORK_WORDS"]


NETWORK_WORDS: Mapping[str, str] = {
    "net.all": _("all ranks"),
    "net.somebody": _("a process"),
    "net.unknown_host": _("an unknown host"),
    "net.unknown_peer": _("an unknown peer"),
    "net.an_interface": _("an unknown interface"),
    # Causes
    "net.error.gpu_ecc": _("the GPU of {who} ({hosts}) failed: {text}"),
    "net.error.gpu_oom": _(
        "{who} ({hosts}) ran out of GPU memory inside the communication library: {text}"
    ),
    "net.error.gpu_assert": _("an assertion failed on the GPU of {who} ({hosts}): {text}"),
    "net.error.gpu_illegal": _(
        "{who} ({hosts}) met a CUDA error, mostly of a kernel that ran before: {text}"
    ),
    "net.error.host_memlock": _(
        "{who} ({hosts}) may not lock the memory that its network card needs: {text}"
    ),
    "net.error.host_files": _("{who} ({hosts}) ran out of file descriptors: {text}"),
    "net.error.host_shm": _("/dev/shm of {hosts} is too small for {who}: {text}"),
    "net.error.fabric_manager": _(
        "NVLink's switches are not ready on {hosts}, seen by {who}: the fabric manager, or GPUs"
        " that were not reset after it: {text}"
    ),
    "net.error.same_device": _("{who} use one GPU: {text}"),
    "net.error.versions": _(
        "processes of this job speak different versions of the communication library: {text}"
    ),
    "net.error.launcher": _(
        "processes disagree on who they are, as after a restart with an old store or with one rank"
        " started twice: {text}"
    ),
    "net.error.net_interface": _(
        "{who} ({hosts}) uses an interface that does not lead to {peer}: {text}"
    ),
    "net.error.mismatch": _(
        "{who} and {peer} do not agree on the size of one message: different collectives, or"
        " different settings or versions: {text}"
    ),
    "net.error.net_port": _(
        "a port or card of {hosts} failed, seen by {who}, {count} times: {text}"
    ),
    "net.error.net_acs": _(
        "the network card may not access the memory it was given on {who} ({hosts}): ACS or the"
        " IOMMU redirect what it does directly: {text}"
    ),
    "net.error.net_gdr": _(
        "the network card of {who} ({hosts}) could not register GPU memory: {text}"
    ),
    "net.error.net_gid": _(
        "{who} ({hosts}) could not connect a queue to its peer: addresses (GIDs) that do not fit,"
        " or rails that are not connected: {text}"
    ),
    "net.error.rails": _(
        "{who} ({hosts}) could not connect queues, and all {known} of which both cards are known"
        " join different rails ({pairs}): the fabric may connect each rail only with itself:"
        " {text}"
    ),
    "net.error.net_retry": _(
        "{who} ({hosts}) got no answer from {peer}: its packets were sent again until that was"
        " given up: {text}"
    ),
    "net.error.net_firewall": _("{who} ({hosts}) cannot reach {peer}: {text}"),
    "net.error.net_socket": _("{who} ({hosts}) found no network that it can use: {text}"),
    "net.error.security_group": _(
        "transfers by EFA of {who} ({hosts}) fail while TCP works, as where the security group does"
        " not allow all traffic to itself: {text}"
    ),
    "net.error.usage": _("{who} called the communication library wrongly: {text}"),
    # Effects and remarks
    "net.closed": _(
        "connections were closed by {peer}: that process ended first, and why stands in its own log"
    ),
    "net.closed.several": _(
        "connections were closed by {peer}: these processes ended, and which of them first cannot"
        " be told from this log"
    ),
    "net.effects": _(
        "the log has only effects of a failure elsewhere: what it was cannot be told from it"
    ),
    "net.flushed": _("{count} requests were flushed after another error, which is not in the log"),
    "net.event": _("the network card reported events, {count} in all: {text}"),
    "net.unknown": _("{count} warnings whose meaning is not known: {text}"),
    "net.retries": _("{who} tried {count} times to connect to {peer} and came no further"),
    "net.jobs": _("the log holds {count} jobs that ran at the same time; only one is judged"),
    # Start-up and calls
    "net.start.some": _(
        "start-up hangs: {ranks} began a communicator of {size} ranks (last seen: {stage}), others"
        " finished it; why cannot be told from the log"
    ),
    "net.start.all": _(
        "start-up hangs: all {size} ranks began a communicator (last seen: {stage}) and none"
        " finished it; why cannot be told from the log"
    ),
    "net.start.silent": _(
        "start-up hangs: {came} of {size} ranks began a communicator (last seen: {stage});"
        " processes on {hosts} log, but never began it"
    ),
    "net.start.absent": _(
        "start-up hangs: {came} of {size} ranks began a communicator (last seen: {stage}), of"
        " {ranks} there is no line; why cannot be told from the log"
    ),
    "net.start.member": _(
        "start-up hangs: {came} of {size} ranks began a communicator that was split off another one"
        " (last seen: {stage}), {ranks} did not; why cannot be told from the log"
    ),
    "net.start.child": _(
        "start-up hangs: {came} of {size} ranks began a communicator of a part of the job (last"
        " seen: {stage}); which ranks the other {count} are, and why, cannot be told from the log"
    ),
    "net.mismatch": _(
        "ranks called different collectives as number {number} of one communicator: {listed}"
    ),
    "net.mismatch.between": _(
        "ranks called different collectives on one communicator, first between number {number} and"
        " {not_after}"
    ),
    "net.behind": _(
        "the log ends with {ranks} behind: {least} collectives called, the others {most}"
    ),
    "net.first_calls": _(
        "the log ends after the first collectives ({most}), sent from GPU to GPU: if the job hangs"
        " there, PCIe's access control (ACS) is the first thing to test"
    ),
    # Configuration
    "net.versions": _("processes use different versions of NCCL: {listed}"),
    "net.settings": _("settings of NCCL differ between ranks: {listed}"),
    "net.fallback": _("traffic between hosts goes by TCP sockets on {interface}"),
    "net.fallback.some": _(
        "{who} talks by TCP sockets on {interface}, the others use {others}: all wait for the slow"
        " ones"
    ),
    "net.fallback.measured": _(
        "{told}; {test} runs at {best:g} GB/s with it and at {usual:g} between the others,"
        " {times:.1f} times as fast"
    ),
    "net.fallback.disabled": _(
        "traffic between hosts goes by TCP sockets on {interface}: NCCL_IB_DISABLE=1 says so"
    ),
    "net.fallback.reason": _(
        "traffic between hosts goes by TCP sockets on {interface}, since faster networks cannot be"
        " used: {reason}"
    ),
    "net.fallback.ipoib": _(
        "traffic between hosts goes by TCP sockets on {interface}, which is InfiniBand used as IP"
    ),
    "net.gdr": _("GPU Direct RDMA is not used on {hosts}: network traffic goes through the host"),
    "net.gdr.some": _(
        "GPU Direct RDMA is not used by {who} ({hosts}), by others it is: their traffic goes"
        " through the host"
    ),
    "net.gdr.card": _("GPU Direct RDMA is disabled for the network cards of {hosts}"),
    "net.slow_nic": _(
        "the link of {card}, port {port}, on {host} ({ranks}) came up at {speed}, where the others"
        " run at {usual}"
    ),
    "net.slow_nic.measured": _(
        "{link}; measured: {test} with it moves at most {best:.3g} GB/s (bus bandwidth, {count}"
        " pairs), where others reach {usual:.3g}"
    ),
    "net.slow_nic.denied": _(
        "{link}; but measured, {test} with it moves {best:.3g} GB/s as others do ({usual:.3g}): it"
        " is not what slows the traffic, or no longer"
    ),
    "net.slow_nic.open": _("{link}; what {test} measured in pairs neither confirms nor refutes it"),
    "net.late_link": _(
        "rank {rank} is {seconds:.1f} s behind the others in its log since “{text}” ({source}), and"
        " {link}"
    ),
    "net.fewer_cards": _("{hosts} uses {count} network cards, others use {most}"),
    "net.interface": _(
        "{who} starts up over {interface} ({address}), which leads to no other host"
    ),
    # The Inspector
    "report.bandwidth": _(
        "Collectives as measured, ms of a call and GB/s: by the transfer alone, and with the wait"
    ),
    "column.call": _("ms a call"),
    "column.busbw": _("busbw"),
    "column.busbw_wait": _("with wait"),
    "net.inspector.late": _(
        "rank {rank} comes last to {op}s of {size} ranks: its part takes {own:.2f} ms, the others'"
        " {others:.2f}, which is their wait for it ({count} of {of} calls looked at)"
    ),
    "net.inspector.slow": _(
        "{op}s of communicator {group} ({who}) move {speed:.3g} GB/s (bus bandwidth, waiting set"
        " aside), where others of its kind reach {usual:.3g}; which of its links is slow cannot be"
        " told from it"
    ),
    "net.inspector.ends": _(
        "the Inspector's records of {ranks} end with {op} {least}, those of the others with {most}:"
        " a call that hangs is never written"
    ),
    # RAS
    "net.ras.ranks": _("{ranks} ({places})"),
    "net.ras.some": _("{count} processes"),
    "net.ras.some_ranks": _("{count} ranks that are not listed"),
    "net.ras.of_comm": _("{ranks} of communicator {comm}"),
    "net.ras.dead": _(
        "NCCL's RAS gave {who} up as dead: no answer for a minute, so it ended, is stopped, or its"
        " host is away"
    ),
    "net.ras.over": _(
        "NCCL's RAS gave {who} up as dead, but no communicator is in use any more: a process that"
        " ended as it should looks the same"
    ),
    "net.ras.silent": _("{who} did not answer NCCL's RAS: it ended, is stopped, or is cut off"),
    "net.ras.silent.again": _(
        "{who} did not answer NCCL's RAS, twice within {seconds:.0f} s: it ended, is stopped, or is"
        " cut off"
    ),
    "net.ras.reported.cause": _("{who} reported to NCCL's RAS: {errors}"),
    "net.ras.reported.effect": _(
        "{who} reported to NCCL's RAS: {errors}; that may follow from a failure elsewhere"
    ),
    "net.ras.differ.once": _(
        "{behind} of {size} ranks of {comm} launched fewer {op} ({least}, others {most}): between"
        " two calls that is no fault, and only another look tells whether it stays so"
    ),
    "net.ras.differ.moves": _(
        "ranks of {comm} launched different numbers of {op} ({least} to {most}), and go on: no hang"
    ),
    "net.ras.since": _("in {seconds:.0f} s"),
    "net.ras.since.unknown": _("between two looks, however far apart these are"),
    "net.ras.stuck": _(
        "{who} did not come to {op} {most} of {comm}: {least} launched, the others {most}, and"
        " nothing moved {since}"
    ),
    "net.ras.stuck.most": _(
        "{behind} of {size} ranks of {comm} are behind in {op} ({least}, others {most}) and nothing"
        " moved {since}; which of them the others wait for cannot be told"
    ),
    "net.ras.mismatch": _(
        "ranks are in different collectives of {comm}: {who} launched fewer {op} than the others,"
        " but more {other}, and nothing moved {since}"
    ),
    "net.ras.stalled": _(
        "{who} launched nothing in {seconds:.0f} s ({op} {least}) while the others went on to"
        " {most}"
    ),
    "net.ras.all_alike": _(
        "all ranks launched the same collectives and nothing since, in {seconds:.0f} s: if the job"
        " hangs, no rank is missing, and it is the network or a kernel"
    ),
    "net.ras.start_up": _(
        "start-up hangs: a communicator of {size} ranks was not finished in {seconds:.0f} s; why"
        " cannot be told from RAS"
    ),
    # nccl-tests
    "net.tests.wrong": _("{test} found {count} wrong values: data change on their way"),
    "net.tests.host": _(
        "{host} is slow in {test}: all {count} slow pairs of {of} have it, at most {slow:.3g} GB/s"
        " where others reach {usual:.3g}"
    ),
    "net.tests.pairs": _(
        "{count} of {of} pairs are slow in {test}, at most {slow:.3g} GB/s where others reach"
        " {usual:.3g}: {pairs}"
    ),
    # Advice
    "advice.net.versions": _(
        "install one version everywhere: python -c 'import torch; print(torch.cuda.nccl.version())'"
        " on each host; ldconfig -p | grep nccl"
    ),
    "advice.net.settings": _(
        "compare before blaming the program: env | grep NCCL_ and the NCCL version on each host"
    ),
    "advice.net.hardware": _(
        "see whether {host} has a faster network and the job's container sees it: ibstat;"
        " ibv_devinfo; ls /dev/infiniband; ldconfig -p | grep ibverbs"
    ),
    "advice.net.unset": _("unset NCCL_IB_DISABLE and start again with NCCL_DEBUG=INFO"),
    "advice.net.measure": _(
        "measure what it costs: all_reduce_perf -b 1M -e 1G -f 2 (nccl-tests) on two hosts"
    ),
    "advice.net.gdr": _(
        "on {host}: lsmod | grep nvidia_peermem, else modprobe nvidia_peermem; or a kernel and"
        " driver with DMA-BUF (nvidia-smi -q | grep -i -e driver)"
    ),
    "advice.net.gdr.measure": _(
        "measure: all_reduce_perf -b 1M -e 1G -f 2 with NCCL_NET_GDR_LEVEL=SYS and =LOC"
    ),
    "advice.net.link": _(
        "look at the link: on {host}, ibstat {card}; ibv_devinfo -d {card} -v | grep active;"
        " ethtool INTERFACE | grep Speed; then cable, transceiver and switch port {port}"
    ),
    "advice.net.ib_write": _(
        "measure the link alone: ib_write_bw -d {card} on a healthy host, then ib_write_bw -d"
        " {card} HEALTHY_HOST on {host}"
    ),
    "advice.net.pairwise": _(
        "run nccl-tests pairwise, {host} with each of some others and these with each other:"
        " mpirun -np 2 -H A,B all_reduce_perf -b 1G -e 1G; give the outputs to tracekit analyze"
    ),
    "advice.net.pairwise.exact": _(
        "measure it in pairs: for p in {pairs}; do mpirun -np 2 -H $p -x NCCL_IB_HCA=={card}:{port}"
        " all_reduce_perf -b 1G -e 1G -g 1; done > pairs.txt; then tracekit analyze {where}"
        " pairs.txt"
    ),
    "advice.net.inspector.late": _(
        "see what rank {rank} does before it: tracekit run, or py-spy dump on {host}; nvidia-smi -q"
        " -d CLOCK,PERFORMANCE there"
    ),
    "advice.net.inspector.slow": _(
        "measure its hosts in pairs: mpirun -np 2 -H A,B all_reduce_perf -b 1G -e 1G, of {hosts};"
        " give the outputs to tracekit analyze"
    ),
    "advice.net.ras.process": _(
        "see whether it is there and where: on {host}, ps -o pid,stat,wchan:20,cmd -p {pid}; py-spy"
        " dump --pid {pid}; dmesg -T | tail"
    ),
    "advice.net.ras.again": _(
        "look again: for i in 1 2 3; do date; ncclras -v; sleep 30; done > ras.txt; then give it to"
        " tracekit analyze"
    ),
    "advice.net.ras.error": _(
        "read the logs of these ranks: NCCL_DEBUG=WARN has the reason in its first warning"
    ),
    "advice.net.cards": _(
        "see which cards it lost: on {host}, ibstat -l; ls /dev/infiniband; dmesg | grep mlx5"
    ),
    "advice.net.interface": _(
        "name the interface that reaches the other hosts: ip -br addr; ip route get PEER; export"
        " NCCL_SOCKET_IFNAME=INTERFACE"
    ),
    "advice.net.gpu": _(
        "drain {host} and look at the GPU: nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg | grep Xid"
    ),
    "advice.net.gpu_memory": _(
        "leave some GPU memory for the library, or reduce the batch: on {host}, nvidia-smi;"
        " torch.cuda.set_per_process_memory_fraction(0.9)"
    ),
    "advice.net.gpu_code": _(
        "find the kernel: CUDA_LAUNCH_BLOCKING=1, compute-sanitizer; on {host}, dmesg | grep Xid"
    ),
    "advice.net.memlock": _(
        "raise the limit: on {host}, ulimit -l unlimited (docker run --ulimit memlock=-1; systemd"
        " and Slurm: LimitMEMLOCK=infinity)"
    ),
    "advice.net.files": _(
        "raise the limit: on {host}, ulimit -n 1048576; all ranks need some descriptors per peer"
        " and channel"
    ),
    "advice.net.shm": _(
        "give the container more: docker run --ipc=host, or --shm-size=8g; on {host}, df -h"
        " /dev/shm"
    ),
    "advice.net.fabric": _(
        "on {host}: systemctl status nvidia-fabricmanager; nvidia-smi -q | grep -A2 Fabric; reset"
        " the GPUs after it was restarted; meanwhile NCCL_NVLS_ENABLE=0"
    ),
    "advice.net.device": _(
        "call torch.cuda.set_device(LOCAL_RANK) before the first collective; look at"
        " CUDA_VISIBLE_DEVICES of both ranks"
    ),
    "advice.net.launcher": _(
        "end what is left of earlier starts, use a fresh port or store, and see that RANK and"
        " WORLD_SIZE differ as they should"
    ),
    "advice.net.port": _(
        "look at cable, transceiver and counters: on {host}, ibstat {card}; perfquery -x; ethtool"
        " -S INTERFACE | grep -i -e err -e drop; dmesg | grep {card}"
    ),
    "advice.net.acs": _(
        "see whether ACS is on: on {host}, lspci -vvv | grep ACSCtl (SrcValid+ is on); turn it off"
        " in the BIOS or by setpci; to test: NCCL_NET_GDR_LEVEL=LOC"
    ),
    "advice.net.gid": _(
        "on RoCE compare the GID tables of both hosts: show_gids; then NCCL_IB_GID_INDEX=3 on both,"
        " or unset it"
    ),
    "advice.net.rail": _(
        "if the failing queues always join different rails: NCCL_CROSS_NIC=0 and"
        " NCCL_IB_MERGE_NICS=0"
    ),
    "advice.net.rails": _(
        "see whether queues within a rail connect: NCCL_CROSS_NIC=0 and NCCL_IB_MERGE_NICS=0; if"
        " they do, the fabric does not connect its rails"
    ),
    "advice.net.reach": _(
        "see whether the hosts reach each other by RDMA: ib_write_bw -d {card} on {peer}, then"
        " ib_write_bw -d {card} {peer} on {host}; ibstat {card} on both"
    ),
    "advice.net.firewall": _(
        "open the ports between the hosts: on {host}, nc -zv {peer} PORT; sysctl"
        " net.ipv4.ip_local_port_range; iptables -L -n; and see that the peer still runs"
    ),
    "advice.net.security_group": _(
        "let the security group allow all traffic from and to itself, inbound and outbound"
    ),
    "advice.net.usage": _("see where the program calls it: the traceback of this rank"),
    "advice.net.peer": _(
        "read the end of the log of {peer} and its kernel's: dmesg -T | tail; the launcher's words"
        " on exit codes"
    ),
    "advice.net.logs": _(
        "give the logs of all ranks: NCCL_DEBUG_FILE=/shared/nccl.%h.%p.log, or tracekit run"
        " --nccl-log"
    ),
    "advice.net.stacks": _(
        "see where the processes are: py-spy dump --pid PID on each host; nvidia-smi"
    ),
    "advice.net.subsystems": _(
        "start again and let it tell more: NCCL_DEBUG=INFO"
        " NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,NET,GRAPH"
    ),
    "advice.net.ports": _(
        "test the way between the hosts: ip -br addr; NCCL_SOCKET_IFNAME; nc -l 29999 on one, nc"
        " -zv HOST 29999 on the other"
    ),
    "advice.net.alone": _(
        "try it without the program: all_reduce_perf -b 8 -e 128M -f 2 (nccl-tests), on one host,"
        " then on pairs of hosts"
    ),
    "advice.net.p2p": _(
        "if it hangs: NCCL_P2P_DISABLE=1; when that helps, lspci -vvv | grep ACSCtl and turn ACS"
        " off"
    ),
}
"""Templates by key; part of ``WORDS``."""
