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
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
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
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(crd)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(reload)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(config)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
'-h[Print help]' \
'--help[Print help]' \
&& ret=0
;;
(doctor)
_arguments "${_arguments_options[@]}" : \
'--config=[Configuration file (TOML), over the defaults]:FILE:_files' \
'--image=[What the one container of every Deployment runs\: an image name without blanks, at most 1024 characters \[key\: image\] \[default\: nginx\:latest\]]:IMAGE:_default' \
'--max-rollouts=[How many Deployments may roll out a new pod template at once, all if 0\: a whole number from 0 to 100000 \[key\: max_rollouts\] \[default\: 10\]]:N:_default' \
'--resync=[How often every object is looked at, unless nothing has changed since the last time\: a duration from 1s to 24h \[key\: resync\] \[default\: 30s\]]:DURATION:_default' \
'--workers=[How many objects are reconciled at once, and as many more where requests hang\: a whole number from 1 to 1000 \[key\: workers\] \[default\: 2\]]:N:_default' \
'*--namespace=[The namespaces of the objects, all if none is named\: a list of namespace names (a-z, 0-9 and -, at most 63 characters) \[key\: namespaces\] \[default\: \[\]\]]:NAME:_default' \
'--shutdown-timeout=[How long running work may take once asked to stop; the pod'\''s grace period must grow along\: a duration from 1s to 1h \[key\: shutdown_timeout\] \[default\: 20s\]]:DURATION:_default' \
'--kubeconfig=[Kubeconfig file; if empty, the pod'\''s service account, else \$KUBECONFIG, else ~/.kube/config\: a path \[key\: kubeconfig\] \[default\: none\]]:FILE:_default' \
'--master=[API server'\''s address, in place of the kubeconfig'\''s; if empty, the kubeconfig'\''s\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: master\] \[default\: none\]]:URL:_default' \
'--backoff-initial=[Delay before the first retry of an object that failed, doubled each time\: a duration from 1ms to 1h \[key\: backoff.initial\] \[default\: 5ms\]]:DURATION:_default' \
'--backoff-max=[Longest delay between two retries of one object\: a duration from 1ms to 24h \[key\: backoff.max\] \[default\: 1000s\]]:DURATION:_default' \
'--backoff-qps=[Retries a second over all objects\: a number from 0.1 to 100000 \[key\: backoff.qps\] \[default\: 50\]]:RATE:_default' \
'--backoff-burst=[Retries that may go at once before qps slows them down\: a whole number from 1 to 100000 \[key\: backoff.burst\] \[default\: 300\]]:N:_default' \
'--leader-election=[Work only while holding the Lease; false is for one replica alone\: true or false \[key\: leader_election.enabled\] \[default\: true\]]::BOOL:_default' \
'--lease-name=[Name of the Lease\: lower-case letters, digits, - and . (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.lease_name\] \[default\: foo-controller\]]:NAME:_default' \
'--lease-namespace=[Namespace of the Lease, needed outside a pod; if empty, the pod'\''s own\: a namespace name (a-z, 0-9 and -, at most 63 characters) \[key\: leader_election.lease_namespace\] \[default\: none\]]:NAME:_default' \
'--fencing-record=[ServiceAccount beside the Lease that names the leader for server-side fencing, which it declares to be installed; if empty, lease_name and -fencing, if there is one\: a ServiceAccount'\''s name (a DNS-1123 subdomain, at most 253 characters) \[key\: leader_election.fencing_record\] \[default\: none\]]:NAME:_default' \
'--lease-duration=[How long a leader that went silent keeps the Lease, and the very first one waits for it\: whole seconds from 1s to 1h \[key\: leader_election.lease_duration\] \[default\: 15s\]]:DURATION:_default' \
'--lease-renew-deadline=[How long a leader works on without renewing; lease_duration is longer, by over 700ms and a 500th of itself\: a duration from 100ms to 1h \[key\: leader_election.renew_deadline\] \[default\: 10s\]]:DURATION:_default' \
'--lease-retry-period=[Pause between tries to get or renew the Lease, renew_deadline being over 1.2 times as long\: a duration from 10ms to 1h \[key\: leader_election.retry_period\] \[default\: 2s\]]:DURATION:_default' \
'--http-addr=[Where /livez and /readyz are served, and /metrics without http.metrics_auth; if empty, nowhere\: an IP address and port such as 0.0.0.0\:8080, or \[\:\:\]\:8080 for IPv4 and IPv6 \[key\: http.addr\] \[default\: \[\:\:\]\:8080\]]:ADDRESS:_default' \
'--http-metrics-auth=[Serve metrics over TLS only, to those who the API server says may get /metrics\: true or false \[key\: http.metrics_auth\] \[default\: false\]]::BOOL:_default' \
'--http-metrics-addr=[Where they are served with http.metrics_auth\: an IP address and port such as 0.0.0.0\:8443, or \[\:\:\]\:8443 for IPv4 and IPv6 \[key\: http.metrics_addr\] \[default\: \[\:\:\]\:8443\]]:ADDRESS:_default' \
'--http-metrics-cert-dir=[Folder with tls.crt and tls.key for that, read again when they change; if empty, a self-signed certificate\: a path \[key\: http.metrics_cert_dir\] \[default\: none\]]:FOLDER:_default' \
'--http-debug-state=[Serve /debug/state, which says what a replica is about, where /metrics is; with http.metrics_auth, to those who may get that path\: true or false \[key\: http.debug_state\] \[default\: false\]]::BOOL:_default' \
'--log-level=[What is logged\: a level (off, error, warn, info, debug, trace) or directives such as info,kube=debug \[key\: log.level\] \[default\: info\]]:LEVEL:_default' \
'--log-format=[How it is written; auto is text on a terminal and json elsewhere\: auto, text or json \[key\: log.format\] \[default\: auto\]]:FORMAT:_default' \
'--otlp-endpoint=[Where traces, logs and metrics go by OTLP/gRPC; if empty, where OTEL_EXPORTER_OTLP_ENDPOINT says, else nowhere\: http\:// or https\:// with a host, perhaps a port and a path, and no credentials or query \[key\: telemetry.endpoint\] \[default\: none\]]:URL:_default' \
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
'run:Run the controller; what happens, too, where no command is given' \
'crd:Print the CustomResourceDefinitions' \
'reload:Have the controller of this container take over a changed log.level, as SIGHUP does' \
'config:Print the configuration in force as TOML, with the origin of each value' \
'doctor:Look at the cluster as the controller would, change nothing, and print a line for each check; exits with 1 where one of them is an error' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'foo-controller commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__config_commands] )) ||
_foo-controller__subcmd__config_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller config commands' commands "$@"
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
(( $+functions[_foo-controller__subcmd__help_commands] )) ||
_foo-controller__subcmd__help_commands() {
    local commands; commands=(
'run:Run the controller; what happens, too, where no command is given' \
'crd:Print the CustomResourceDefinitions' \
'reload:Have the controller of this container take over a changed log.level, as SIGHUP does' \
'config:Print the configuration in force as TOML, with the origin of each value' \
'doctor:Look at the cluster as the controller would, change nothing, and print a line for each check; exits with 1 where one of them is an error' \
'help:Print this message or the help of the given subcommand(s)' \
    )
    _describe -t commands 'foo-controller help commands' commands "$@"
}
(( $+functions[_foo-controller__subcmd__help__subcmd__config_commands] )) ||
_foo-controller__subcmd__help__subcmd__config_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help config commands' commands "$@"
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
(( $+functions[_foo-controller__subcmd__help__subcmd__help_commands] )) ||
_foo-controller__subcmd__help__subcmd__help_commands() {
    local commands; commands=()
    _describe -t commands 'foo-controller help help commands' commands "$@"
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
