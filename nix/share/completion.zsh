#compdef foo-controller

autoload -U is-at-least

_foo-controller() {
    typeset -A opt_args
    typeset -a _arguments_options
    local ret=1

    if is-at-least 5.2; then
        _arguments_options=(-s -S -C)
    else
        _arguments_options=(-s -C)
    fi

    local context curcontext="$curcontext" state line
    _arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
'-V[Print version]' \
'--version[Print version]' \
":: :_foo-controller_commands" \
"*::: :->foo-controller" \
&& ret=0
    case $state in
    (foo-controller)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:foo-controller-command-$line[1]:"
        case $line[1] in
            (run)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(crd)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(rbac)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(fencing-policy)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(config)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
'--object=[Report why this object is not written, and check only its namespace. KIND is needed if the program has several kinds. A cluster-scoped object is KIND/NAME]:[KIND/]NAMESPACE/NAME:_default' \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(plan)
_arguments "${_arguments_options[@]}" : \
'-o+[Format of the plan; json has one object per line]:FORMAT:(text json)' \
'--output=[Format of the plan; json has one object per line]:FORMAT:(text json)' \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'--check[Exit with 1 if a request is needed]' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(convert)
_arguments "${_arguments_options[@]}" : \
'--cert-dir=[Folder with tls.crt and tls.key, reloaded when they change]:FOLDER:_files' \
'--listen=[Address of the webhook]:ADDRESS:_default' \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(migrate)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), overriding the defaults]:FILE:_files' \
'--image=[Container image of every Deployment\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[Maximum number of concurrent rollouts of new pod templates; 0 means no limit\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[Interval of the full resync; skipped while nothing has changed\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[Number of concurrent reconciles; namespaces where requests hang have as many more\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[Namespaces of the objects; if empty, all\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--installation=[Name of this installation\: it serves the objects whose label installation, with the prefix of the API group, has this value; if empty, the objects without the label or with an empty value. Also a suffix of the Lease'\''s name\: empty or a DNS-1123 label (a-z, 0-9 and inner -, at most 63 characters), because the name of the Lease ends with it \[key\: installation\] \[default\: none\]]:NAME:_default' \
'--shutdown-timeout=[Time for running work to finish after a stop request; increase the pod'\''s grace period with it\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[Address of the API server; if empty, the kubeconfig'\''s\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries per second, of all objects together\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries without delay before qps limits them\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is only for a single replica\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease, without the suffix of an installation\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount in the Lease'\''s namespace that names the leader for server-side fencing; a name declares that fencing is installed; if empty, lease_name and -fencing, if it exists\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[Time without a renewal after which another replica may take the Lease; the first holder of a new Lease waits as long\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[Time without a successful renewal after which the leader stops; lease_duration must exceed it by more than 700ms plus a 500th of lease_duration\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between attempts to acquire or renew the Lease; renew_deadline must exceed 1.2 times this\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Address of /livez, /readyz and, without http.metrics_auth, /metrics; if empty, none of them is served\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve /metrics over TLS only, to clients that the API server allows to get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Address of /metrics with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for http.metrics_addr, reloaded when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve the replica'\''s internal state as JSON at /debug/state, on the address of /metrics; with http.metrics_auth, to clients that may get this path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[Log level\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[Log format; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[OTLP endpoint for traces, logs and metrics; if empty, OTEL_EXPORTER_OTLP_ENDPOINT, else no export\: an http\:// or https\:// URL with a host, optionally a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'--otlp-protocol=[OTLP protocol; if empty, OTEL_EXPORTER_OTLP_PROTOCOL, else grpc\: grpc or http/protobuf \[key\: telemetry.protocol\] \[default\: none\]]:PROTOCOL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
":: :_foo-controller__subcmd__help_commands" \
"*::: :->help" \
&& ret=0

    case $state in
    (help)
        words=($line[1] "${words[@]}")
        (( CURRENT += 1 ))
        curcontext="${curcontext%:*:*}:foo-controller-help-command-$line[1]:"
        case $line[1] in
            (run)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(crd)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(rbac)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(fencing-policy)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(config)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(plan)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(convert)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(migrate)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
(help)
_arguments "${_arguments_options[@]}" : \
&& ret=0
;;
        esac
    ;;
esac
;;
        esac
    ;;
esac
}

(( $+functions[_foo-controller_commands] )) ||
_foo-controller_commands() {
    local commands; commands=(
'run:Run the controller (default)' \
'crd:Print the CustomResourceDefinitions' \
'rbac:Print the ClusterRole that the controllers need' \
'fencing-policy:Print the admission policy that rejects writes of a replica that does not lead. The fencing component has its binding and record' \
'reload:Make the controller in this container apply a changed log.level, as SIGHUP does' \
'config:Print the configuration in force as TOML, with the origin of each value' \
'doctor:Check the cluster as the controller uses it, without changes, and print a line for each check; exit with 1 if one is an error. With --object=\[KIND/\]NAMESPACE/NAME, report why this object is not written' \
'plan:Print the requests that this version would send first for each object, and send none. Exit with 2 if the plan is incomplete' \
'convert:Serve the conversion webhook of the program'\''s CustomResourceDefinitions, if one has versions with different schemas. Needs no permissions' \
'migrate:Rewrite every object in the stored version of its CustomResourceDefinition, and remove the other versions from status.storedVersions' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'foo-controller commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__config_commands] )) ||
_foo-controller__subcmd__config_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller config commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__convert_commands] )) ||
_foo-controller__subcmd__convert_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller convert commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__crd_commands] )) ||
_foo-controller__subcmd__crd_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller crd commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__doctor_commands] )) ||
_foo-controller__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller doctor commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__fencing-policy_commands] )) ||
_foo-controller__subcmd__fencing-policy_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller fencing-policy commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help_commands] )) ||
_foo-controller__subcmd__help_commands() {
    local commands; commands=(
'run:Run the controller (default)' \
'crd:Print the CustomResourceDefinitions' \
'rbac:Print the ClusterRole that the controllers need' \
'fencing-policy:Print the admission policy that rejects writes of a replica that does not lead. The fencing component has its binding and record' \
'reload:Make the controller in this container apply a changed log.level, as SIGHUP does' \
'config:Print the configuration in force as TOML, with the origin of each value' \
'doctor:Check the cluster as the controller uses it, without changes, and print a line for each check; exit with 1 if one is an error. With --object=\[KIND/\]NAMESPACE/NAME, report why this object is not written' \
'plan:Print the requests that this version would send first for each object, and send none. Exit with 2 if the plan is incomplete' \
'convert:Serve the conversion webhook of the program'\''s CustomResourceDefinitions, if one has versions with different schemas. Needs no permissions' \
'migrate:Rewrite every object in the stored version of its CustomResourceDefinition, and remove the other versions from status.storedVersions' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'foo-controller help commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__config_commands] )) ||
_foo-controller__subcmd__help__subcmd__config_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help config commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__convert_commands] )) ||
_foo-controller__subcmd__help__subcmd__convert_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help convert commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__crd_commands] )) ||
_foo-controller__subcmd__help__subcmd__crd_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help crd commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__doctor_commands] )) ||
_foo-controller__subcmd__help__subcmd__doctor_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help doctor commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__fencing-policy_commands] )) ||
_foo-controller__subcmd__help__subcmd__fencing-policy_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help fencing-policy commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__help_commands] )) ||
_foo-controller__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help help commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__migrate_commands] )) ||
_foo-controller__subcmd__help__subcmd__migrate_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help migrate commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__plan_commands] )) ||
_foo-controller__subcmd__help__subcmd__plan_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help plan commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__rbac_commands] )) ||
_foo-controller__subcmd__help__subcmd__rbac_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help rbac commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__reload_commands] )) ||
_foo-controller__subcmd__help__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help reload commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__run_commands] )) ||
_foo-controller__subcmd__help__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help run commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__migrate_commands] )) ||
_foo-controller__subcmd__migrate_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller migrate commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__plan_commands] )) ||
_foo-controller__subcmd__plan_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller plan commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__rbac_commands] )) ||
_foo-controller__subcmd__rbac_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller rbac commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__reload_commands] )) ||
_foo-controller__subcmd__reload_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller reload commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__run_commands] )) ||
_foo-controller__subcmd__run_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller run commands' commands "$@"
}

if [ "$funcstack[1]" = "_foo-controller" ]; then
    _foo-controller "$@"
else
    compdef _foo-controller foo-controller
fi
