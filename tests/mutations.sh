#!/bin/sh
# Takes out the safeguards of tickr one at a time, in a copy of the committed sources, and runs the tests of the promise
# behind each: they must turn red. A test that stays green proves nothing.
#
#   sh tests/mutations.sh                          all of them, more than a day; make mutants alone is tools/mutants.py
#   make mutants ARGS=claim                        the safeguards whose name has this word
#   make mutants ARGS="'token in settle'"          the safeguard with this name
#   make mutants ARGS="--from 'token in settle'"   this one and all after it, to continue an interrupted run
#
# Prints the table of tests/MUTATIONS.md row by row, and at the end the safeguards whose tests stayed green.
# target/mutants/logs has the output of each test: read there whether it turned red for the right reason.
#
# There are two target directories, 5 GB in all, because the next safeguard is built while the test of the last one
# runs.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
copy=$root/target/mutants
# Longest time that a test may take, in seconds.
patience=600
from='' only='' exact=''
# The safeguard whose test runs.
running='' name='' files='' tests='' count=0
ran=0 failures=''

main() {
    case ${1:-} in
    --from) from=${2:?--from needs the name of a safeguard} ;;
    *) only=${1:-} ;;
    esac
    for quote in "'" '"'; do
        if grep -qF "mutant $quote$only$quote " "$0"; then exact=yes; fi
    done
    prepare
    printf '| safeguard taken out | in | turns red |\n|---|---|---|\n'
    mutants
    judge
    [ "$ran" -gt 0 ] || { echo "there is no safeguard of this name: $only$from" >&2; exit 1; }
    [ -z "$failures" ] || { printf 'to be looked at:\n%s' "$failures" >&2; exit 1; }
}

# Build the committed sources in both target directories.
prepare() {
    rm -rf "$copy/src" "$copy/whole" "$copy/logs"
    mkdir -p "$copy/src" "$copy/whole" "$copy/logs"
    # tar -m sets the current time instead of the time of the commit. So the sources are newer than anything that an
    # interrupted run has built of a mutant, and cargo builds them again.
    (cd "$root" && git archive HEAD) | tar -xm -C "$copy/src" -f -
    # The other crates need not be built again: copy them from the working copy.
    if [ ! -d "$copy/a" ] && [ -d "$root/target/debug/deps" ]; then
        mkdir -p "$copy/a/debug"
        for part in deps build .fingerprint; do
            cp -Rp "$root/target/debug/$part" "$copy/a/debug/$part"
            rm -rf "$copy/a/debug/$part"/*tickr* "$copy/a/debug/$part"/suite-* "$copy/a/debug/$part"/chaos-*
        done
    fi
    trap 'kill $running 2>/dev/null || :' EXIT
    trap 'exit 130' INT TERM
    cd "$copy/src"
    lane=a
    build || { cat "$copy/logs/build" >&2; echo 'the sources do not build as they are' >&2; exit 1; }
    [ -d "$copy/b" ] || cp -Rp "$copy/a" "$copy/b"
}

mutants() {
    mutant 'a statement that ran before is no error' internal/store/migrate/mod.rs \
        '[1050, 1060, 1061, 1826, 3822]' '[1, 2, 3, 4, 5]' \
        migrations::a_migration_killed_again_and_again_is_completed_by_the_next_run
    mutant 'finite wait of a migration for a table' internal/store/migrate/mod.rs \
        'let turn = (1 + u64::from(turns) / 4).min(3);' 'let turn = (60 + u64::from(turns) / 4).max(3);' \
        migrations::a_migration_that_waits_for_a_snapshot_lets_settles_pass_and_says_who_is_in_the_way
    mutant 'rights before the first statement' internal/store/migrate/mod.rs \
        'if !lacking.is_empty() {' 'if lacking.len() > 9 {' \
        migrations::an_account_that_may_not_is_told_the_grant_before_anything_is_changed
    mutant 'right to delete before the first statement' internal/store/migrate/rights.rs \
        '"UPDATE", "DELETE", "CREATE"].contains(&right)' '"UPDATE", "CREATE"].contains(&right)' \
        migrations::an_account_that_may_not_is_told_the_grant_before_anything_is_changed
    mutant 'rights to rows at a start' internal/store/migrate/rights.rs \
        'Ok(true) => lacking.push(right),
            Err(e) if number(&e).is_none() => return Err(e),' \
        'Ok(true) => {}
            Err(e) if number(&e).is_none() => return Err(e),' \
        migrations::an_account_without_one_of_the_rights_to_rows_is_refused_with_or_without_tables
    mutant 'rights of a runner whose tables exist' internal/app/migrating.rs \
        'store.check_rights().await' 'Ok(())' \
        migrations::an_account_without_one_of_the_rights_to_rows_is_refused_with_or_without_tables
    mutant 'rights on single tables' internal/store/migrate/rights.rs \
        '"DELETE FROM owed WHERE 1 = 0"' '"DELETE FROM tickr_no_such_table"' \
        migrations::an_account_without_one_of_the_rights_to_rows_is_refused_with_or_without_tables
    mutant 'refusals that are not about rights' internal/store/migrate/rights.rs \
        'Ok(false) | Err(_) => {}' 'Ok(false) => {}
            Err(_) => lacking.push(right),' \
        mysql_faults::a_read_only_server_is_an_outage_that_ends
    mutant 'owner of a table before the first statement' internal/store/migrate/mod.rs \
        'if let Owner::Another { lacks } = within(ANSWER, Self::owner(&mut conn, statement)).await? {' \
        'if let Owner::Another { lacks } = within(ANSWER, Self::owner(&mut conn, statement)).await? && lacks.is_empty() {' \
        migrations::a_table_of_another_program_is_named_and_not_touched
    mutant 'prefix in a statement' internal/store/sql/session.rs \
        'match with_prefix(prefix, sql.as_str()) {' \
        'match with_prefix(&TablePrefix::default(), if prefix.is_empty() { "" } else { sql.as_str() }) {' \
        table_prefix::a_tickr_with_a_prefix_shares_the_database_of_laravel_and_touches_only_its_tables
    mutant 'columns with the name of a table' internal/store/sql/table_names.rs \
        ' && !previous.eq_ignore_ascii_case("KEY")' ' && !previous.eq_ignore_ascii_case("NO")' \
        table_prefix::a_tickr_with_a_prefix_shares_the_database_of_laravel_and_touches_only_its_tables
    mutant 'prefix in the keys of Redis' internal/config/load.rs \
        'config.redis_prefix = Config::usual_redis_prefix(&config.table_prefix);' '' \
        table_prefix::tickrs_with_two_prefixes_in_one_database_and_one_redis_do_not_see_one_another
    mutant 'prefix in the lock of a migration' internal/store/migrate/lock.rs \
        'if prefix.is_empty() {' 'if prefix.as_str().len() < 100 {' \
        table_prefix::migrations_of_two_prefixes_do_not_wait_for_each_other
    mutant 'another tickr in the database' internal/store/migrate/mod.rs \
        'if ledger.is_empty() {' 'if ledger.is_empty() && prefix.as_str().len() > 100 {' \
        table_prefix::a_changed_prefix_is_refused_and_makes_no_second_installation
    mutant 'tables that two tickrs would share' internal/store/migrate/mod.rs \
        'if self.settings.beside_another && shared.is_none() {' 'if self.settings.beside_another {' \
        table_prefix::a_changed_prefix_is_refused_and_makes_no_second_installation
    mutant 'lock of a migration' internal/store/migrate/lock.rs \
        'Ok(Some(1_i64)) => return Ok(()),' 'Ok(Some(0 | 1_i64)) => return Ok(()),' \
        migrations::serve_answers_probes_while_it_waits_for_a_migration_and_starts_when_it_is_done
    mutant 'probes beside idle clients of a migration' internal/app/migrating.rs \
        'turned_away.len() < MAX_TURNED_AWAY' 'turned_away.len() > MAX_TURNED_AWAY' \
        migrations::serve_answers_probes_while_it_waits_for_a_migration_and_starts_when_it_is_done
    mutant 'older tables below a new API key' cmd/tickr/api_keys.rs \
        'read => return read,' 'read => drop(read),' \
        migrations::an_api_key_is_made_in_older_tables_without_a_migration
    mutant 'kinds of other runners in a replay' internal/broker/lib.rs \
        'is_none() && living_kinds.contains(&original.kind)' 'is_none() && living_kinds.is_empty()' \
        operations::a_replay_of_a_kind_that_only_another_runner_has_leaves_no_dead_letter
    mutant 'writes on the server in use' internal/store/sql/servers.rs \
        'text == "0" || text' 'text != "2" || text' \
        failover::runners_with_two_servers_in_their_url_use_the_one_that_takes_writes
    mutant 'refusal of a server that only reads' internal/app/mod.rs \
        'store.check_primary(PATIENCE).await.map_err(|e| start_error(e, config))?;' 'let _ = Store::check_primary;' \
        failover::a_runner_does_not_start_at_a_server_that_only_reads_and_says_why
    mutant 'patience with a server that only reads' internal/store/sql/durability.rs \
        'if !may_change || began.elapsed() >= patience {' 'if may_change || began.elapsed() >= patience {' \
        failover::a_runner_does_not_start_at_a_server_that_only_reads_and_says_why
    mutant 'connections from before a refused write' internal/store/sql/read_only.rs \
        'age >= RENEWED && age + RENEWED > last.elapsed()' 'age > age + RENEWED + last.elapsed()' \
        failover::after_a_refused_write_no_read_asks_the_former_primary_behind_a_proxy
    mutant 'replicas that follow asynchronously' internal/store/sql/topology.rs \
        'Some(_) => of(TopologyKind::AsyncReplicas, Some(LATE)),' \
        'Some(_) => of(TopologyKind::Single, Some(LATE).filter(|_| false)),' \
        failover::readyz_says_what_a_failover_may_lose
    mutant 'semi-synchronous replication that does not wait' internal/store/sql/topology.rs \
        'return of(TopologyKind::AsyncReplicas, Some(FALLEN_BACK));' \
        'return of(TopologyKind::SemiSync, Some(FALLEN_BACK));' \
        failover::readyz_says_what_a_failover_may_lose
    mutant 'connections to a server that was left' internal/store/sql/connection.rs \
        'if turn == self.target.turn() || connections.is_closed() {' 'if turn < 999 {' \
        failover::runners_with_two_servers_in_their_url_use_the_one_that_takes_writes
    mutant 'server that answers with errors alone' internal/store/sql/servers.rs \
        '_ if fault(error) == Fault::Reconnect => Blame::Doubtful,' '_ if number(error) == Some(0) => Blame::Doubtful,' \
        failover::a_server_that_answers_with_errors_alone_is_left_for_the_next_one_of_the_url
    mutant 'doubt before a server is left' internal/store/sql/connection.rs \
        'Ok(()) => servers.proved(turn),' 'Ok(()) => servers.leave(turn, error),' \
        failover::an_error_of_one_statement_leads_no_process_to_another_server
    mutant 'row that a probe changes' internal/store/sql/write_probe.rs \
        'ON DUPLICATE KEY UPDATE turn = turn + 1;COMMIT' 'ON DUPLICATE KEY UPDATE turn = turn;COMMIT' \
        failover::a_server_that_answers_and_commits_nothing_is_left_for_the_next_one
    mutant 'write in the doubt about a server' internal/store/sql/connection.rs \
        'match within(FIRST_WORDS, write_probe::write(&mut conn)).await {' 'match within(FIRST_WORDS, async { drop(conn); Ok(()) }).await {' \
        failover::a_server_that_answers_and_commits_nothing_is_left_for_the_next_one
    mutant 'commit in a probe' internal/store/sql/durability.rs \
        'within(PROBE_LIMIT, write_probe::write(conn)).await?;' 'sqlx::query("UPDATE runners SET busy = 0 WHERE FALSE").execute(conn).await?;' \
        mysql_faults::a_result_waits_for_as_long_as_mysql_takes_none_and_no_longer_than_its_job_is_there \
        mysql_faults::a_runner_whose_commits_are_refused_fetches_no_job_until_one_succeeds
    mutant 'one probe at a time' internal/store/sql/durability.rs \
        'Arc::clone(&self.shared.pools.probe).lock_owned().await' 'Arc::new(tokio::sync::Mutex::new(())).lock_owned().await' \
        mysql_faults::probes_that_wait_in_mysql_take_one_connection_from_the_loops
    mutant 'room on the disk of the server' internal/store/sql/durability.rs \
        'if self.shared.options.server.room.was_missing() {' \
        'if false && self.shared.options.server.room.was_missing() {' \
        mysql_faults::a_runner_whose_results_find_no_room_is_not_ready_and_fetches_no_job
    mutant 'rest of a trouble that comes back' internal/engine/store_trouble.rs \
        'if comes_back { (self.rest * 2).clamp(FIRST_REST, MAX_PAUSE) }' 'if comes_back { FIRST_REST * 0 }' \
        mysql_faults::a_runner_whose_claims_alone_are_refused_slows_down_until_one_succeeds
    mutant 'pace of lines about claims' internal/engine/lib.rs \
        'match self.store_trouble.next_claim_line() {' 'match self.store_trouble.next_claim_line().or(Some(0)) {' \
        mysql_faults::a_runner_whose_claims_alone_are_refused_slows_down_until_one_succeeds
    mutant 'verdicts that wait at a stop' internal/engine/live.rs \
        'values().filter(|running| running.settling).count()' 'values().filter(|_| false).count()' \
        shutdown::a_stop_while_mysql_and_redis_are_out_still_ends
    mutant 'word of a process that gives its suspect back' internal/engine/solo.rs \
        'close(StopReason::GivenBack)' 'close(StopReason::Shutdown)' \
        poison::a_child_whose_runner_is_killed_gives_its_job_back_and_ends
    mutant 'brackets of an IPv6 address' internal/store/sql/servers.rs \
        'Some(host) => options.host(&host),' 'Some(_) => options,' \
        failover::a_server_is_reached_by_its_ipv6_address
    mutant 'end of a migration whose server was left' internal/store/migrate/mod.rs \
        'is_known && self.turn == self.store.shared.options.turn()' 'is_known || self.turn != self.store.shared.options.turn()' \
        migrations::a_migration_whose_server_vanished_goes_on_at_the_next_one
    mutant 'ordered jobs whose commit was under way' internal/store/jobs/insert.rs \
        'Err(error) if fault(&error) == Fault::Duplicate => {' 'Err(error) if fault(&error) == Fault::Again => {' \
        store::ordered_jobs_are_accepted_whose_commit_ended_after_a_wait_for_their_key
    mutant 'stop told to the supervisor' internal/app/mod.rs \
        'supervisor.say_stopping(self.notice.max(self.grace) + AFTER_THE_GRACE);' '' \
        supervisor::a_supervisor_hears_of_the_start_the_readiness_and_the_stop_in_this_order
    mutant 'lines about heartbeats that fail' internal/engine/heartbeat.rs \
        'match (self.lines.next_line(), error) {' 'match (LinePace::new().next_line(), error) {' \
        mysql_faults::while_mysql_is_out_the_api_says_so_nothing_spins_and_what_runs_keeps_its_verdict
    mutant 'lines about requests that are refused' internal/api/http/problem.rs \
        'PoisonError::into_inner).next_line();' 'PoisonError::into_inner).next_line().or(Some(0));' \
        mysql_faults::while_mysql_is_out_the_api_says_so_nothing_spins_and_what_runs_keeps_its_verdict
    mutant 'turns of the heartbeat while MySQL hangs' internal/engine/heartbeat.rs \
        'heartbeats.record_turn();' '' \
        supervisor::the_watchdog_is_fed_also_while_mysql_hangs_and_not_by_a_frozen_process
    mutant 'jobs for later in the demand of a queue' internal/store/jobs/demand.rs \
        ' AND o.execute_at <= UTC_TIMESTAMP(3)' '' \
        queues::the_demand_of_a_queue_that_no_runner_serves_is_told_by_any_runner
    mutant 'attempts elsewhere in the demand of a queue' internal/store/jobs/demand.rs \
        "o.state = 'executing' AND EXISTS" 'FALSE AND EXISTS' \
        deferred::an_attempt_that_another_system_finishes_wants_no_worker_of_its_queue
    mutant 'executing jobs in the demand of a queue' internal/api/queues.rs \
        'executing + startable.min(room)' 'startable.min(room)' \
        queues::executing_jobs_keep_their_workers_in_the_demand_of_a_queue
    mutant 'mode of the secrets in the Debian package' tools/deb.sh \
        'put 0640' 'put 0644' \
        packages::the_debian_package_has_the_program_its_unit_and_no_secret_that_all_can_read
    mutant 'umask of the packages' tools/package.sh \
        'umask 022' 'umask 077' tools/package.sh '--mode=u+rwX,go+rX,go-w' '--mode=u+w,go-w' \
        packages::the_same_sources_and_binary_make_the_same_packages
    mutant 'write before MySQL counts as up' internal/api/system/metrics.rs \
        'runners.is_some() && self.commits().await' 'runners.is_some() || self.commits().await' \
        mysql_faults::a_server_that_takes_no_writes_is_down_in_the_metrics
    mutant 'gauge of the heartbeat without workers' internal/engine/heartbeat.rs \
        'f64::from(heartbeats.is_beating(lease))' 'f64::from(heartbeats.is_beating(Duration::MAX / 2 + lease))' \
        claims::a_process_without_a_worker_tells_whether_its_heartbeat_is_answered
    mutant 'limit of open files' internal/app/run.rs \
        'open_files::raise(&loaded.config);' '' \
        starvation::clients_that_use_up_the_files_of_a_shell_cost_no_attempt_of_a_callback
    mutant 'authorities where the system has none' internal/client/authorities.rs \
        'match public_authorities() {' 'match Err::<rustls::ClientConfig, ()>(()) {' \
        supervisor::commands_work_on_a_system_without_certificates
    mutant 'neighbours of a wrong job in a shared request' internal/client/http.rs \
        'if !status.is_success() && !status.is_server_error() && !may_pass(status) {' 'if status.is_redirection() {' \
        client::calls_of_the_api_that_share_a_request_have_their_own_answers
    mutant 'jobs of a shared request that a busy runner refused' internal/client/http.rs \
        'let is_busy = status == reqwest::StatusCode::TOO_MANY_REQUESTS;' 'let is_busy = false;' \
        client::a_shared_request_to_a_busy_runner_is_not_sent_again_for_each_caller
    mutant 'jobs of a shared request whose answer was lost' internal/client/http.rs \
        'Err(error) if error.is_builder() || error.is_connect() => return' 'Err(error) if !error.is_status() => return' \
        client::a_lost_answer_to_a_shared_request_leaves_its_callers_unsure_and_sends_nothing_again
    mutant 'limits of a proxy' internal/client/http.rs \
        'Err(error) if status.is_server_error() || may_pass(status) => Err(unavailable(error)),' \
        'Err(error) if status.is_server_error() => Err(unavailable(error)),' \
        client::the_answer_of_a_proxy_that_limits_requests_may_be_asked_for_again
    mutant 'shared request that a proxy refused' internal/client/http.rs \
        '&& !may_pass(status) {' '&& !is_busy || may_pass(status) {' \
        client::the_answer_of_a_proxy_that_limits_requests_may_be_asked_for_again
    mutant 'calls that share no request' internal/client/http.rs \
        'if !(shares && is_plain && self' 'if !((shares || is_plain) && self' \
        client::calls_of_the_api_that_depend_on_others_are_sent_alone
    mutant 'token in settle' internal/store/attempts/settle.rs \
        '.filter(|owed| owed.token == item.token)' \
        '.filter(|owed| owed.state == State::Executing || owed.token == item.token)' \
        store::only_the_holder_of_the_token_can_end_an_attempt
    mutant 'token in the end of a success' internal/store/attempts/complete.rs \
        'AND CONCAT(id, token) IN {pairs_list} AND' 'AND CONCAT(id, token) IN {pairs_list} IS NOT NULL AND' \
        store::a_success_ends_only_the_attempt_that_it_names
    mutant 'cancel in the end of a success' internal/store/attempts/complete.rs \
        ' AND cancel_requested_at IS NULL' '' \
        store::a_success_that_was_asked_to_stop_says_so
    mutant 'tallies behind the last wait of a success' internal/store/attempts/complete.rs \
        '    let linked = ends.record_steps(&mut write, "?");' \
        '    let linked = ends.record_steps(&mut write, "?"); counts.add_step(&mut write);' \
        store::an_end_that_waits_for_another_row_locks_no_tally
    mutant 'tallies with the COMMIT of other ends' internal/store/rows/tallies.rs \
        'if is_in_cluster() || !conn.is_transaction() {' 'if is_in_cluster() || conn.is_transaction() {' \
        store::a_process_that_stalls_before_a_commit_locks_no_tally
    mutant 'patience of a small batch' internal/store/sql/group_commit.rs \
        'PATIENCE: Duration = Duration::from_millis(2)' 'PATIENCE: Duration = Duration::from_secs(60)' \
        store::a_write_that_waits_for_a_row_does_not_hold_up_the_others
    mutant 'pools of their own' internal/store/sql/pools.rs \
        'let pool = |size| Pool::new(target, size);' \
        'let one = Pool::new(target, total.max(controls)); let pool = |_: u32| one.clone();' \
        store::reads_and_changes_that_hang_leave_the_loops_and_the_controls_their_connections
    mutant 'unknown errors as outages' internal/store/sql/error.rs \
        '_ => Fault::Reconnect,
    }
}

/// Outages' '_ => Fault::Unfit,
    }
}

/// Outages' \
        mysql_faults::errors_that_tickr_does_not_know_are_outages_that_lose_no_result_and_double_nothing \
        mysql_faults::results_outlive_a_password_that_is_changed_while_they_come
    mutant 'locked rows apart from their batch' internal/store/sql/group_commit.rs \
        'if taken.iter().all(|one| B::row(&one.item).is_none()) {' 'if !taken.is_empty() {' \
        store::a_locked_row_holds_up_none_of_the_ends_in_its_batch_for_more_than_one_wait \
        store::a_locked_row_holds_up_none_of_the_claims_in_its_batch_for_more_than_one_wait_and_loses_none
    mutant 'successes before the rest of their batch' internal/store/attempts/settle.rs \
        'success.is_some()' 'success.is_some() && false' \
        store::a_next_job_that_was_claimed_starts_while_the_rest_of_its_batch_waits_for_a_row
    mutant 'one wait for the locks of both parts of a batch' internal/store/sql/group_commit.rs \
        'self.link.hurry(has_waited);' 'self.link.hurry(has_waited && false);' \
        store::locked_rows_of_both_parts_of_a_batch_hold_up_none_of_its_ends_for_more_than_one_wait
    mutant 'time limit of statements on the server' internal/store/sql/connection.rs \
        ', \
     max_statement_time = 0 */' \
        ' */' \
        store::a_time_limit_of_the_server_ends_no_wait_for_a_locked_row
    mutant 'settings of a session' internal/store/sql/connection.rs \
        'SET SESSION autocommit = 1,' 'SET SESSION' \
        mysql_faults::the_servers_own_defaults_change_nothing_and_its_limits_are_kept
    mutant 'confidence of a difference' internal/job/differences.rs \
        'first - second - width * (one + other).sqrt()' 'first - second' \
        differences::a_value_that_most_failures_and_few_successes_have_comes_first_and_noise_is_not_shown
    mutant 'sensitive fields of payloads in a comparison' internal/api/jobs/differences.rs \
        'return !is_sensitive_field(kind.schema(), field);' 'return true;' \
        differences::no_value_that_the_schema_calls_sensitive_is_compared
    mutant 'fields of unknown kinds in a comparison' internal/api/jobs/differences.rs \
        'find(|set| set.kind.name == *kind).is_some_and(' 'find(|set| set.kind.name == *kind).is_none_or(' \
        differences::no_value_that_the_schema_calls_sensitive_is_compared
    mutant 'runners that ended expired jobs' internal/store/jobs/conditions.rs \
        ' AND a.expired IS NULL' '' \
        search::a_job_that_expired_is_found_by_its_attempts_and_not_by_the_runner_that_ended_it \
        differences::jobs_that_expired_before_their_first_attempt_are_blamed_on_no_runner
    mutant 'runners that ended expired jobs in a survey' internal/store/jobs/survey.rs \
        ' AND expired IS NULL AS executed' ' AS executed' \
        search::a_job_that_expired_is_found_by_its_attempts_and_not_by_the_runner_that_ended_it
    mutant 'conditions of the filter for jobs that passed' internal/store/jobs/differences.rs \
        '..filter
    };
    let mut search' '..Filter::default()
    };
    let mut search' \
        differences::tags_keys_and_attempts_of_failed_jobs_are_compared_within_the_filter
    mutant 'choices about the end in a comparison' internal/store/jobs/differences.rs \
        '!choice.of.iter().any(is_about_the_end)' '!choice.of.is_empty()' \
        differences::a_choice_of_states_causes_or_errors_leaves_jobs_that_passed_to_compare
    mutant 'record of a wait for a limit' internal/store/rows/limits.rs \
        'WHERE w.job_id IN {list} AND w.parked_at IS NOT NULL' 'WHERE w.job_id IN {list} AND w.parked_at IS NULL' \
        timeline::the_wait_for_a_limit_is_recorded_for_the_attempt_that_it_held_up
    mutant 'removal of records of waits for a limit' internal/store/retention/remove.rs \
        '("limit_holds", "job_id", "PRIMARY"),' '' \
        timeline::the_wait_for_a_limit_is_recorded_for_the_attempt_that_it_held_up
    mutant 'pauses of the queue in a timeline' internal/store/jobs/timeline.rs \
        'pauses: pauses(conn, &queue, created_at).await?' 'pauses: Vec::new()' \
        timeline::a_job_waits_for_its_time_and_for_a_paused_queue_and_backs_off_after_a_failure
    mutant 'end of a job behind the last line of its timeline' internal/store/jobs/timeline.rs \
        'None => end(conn, id).await?,' 'None => attempts.last().and_then(|last| last.end.zip(last.finished_at)),' \
        timeline::a_job_of_thousands_of_attempts_shows_how_it_ended_and_the_last_of_them
    mutant 'attempts in a read of a job' internal/store/jobs/read.rs \
        'LIMIT {MAX_LINES}' 'LIMIT 9{MAX_LINES}' \
        timeline::a_job_of_thousands_of_attempts_shows_how_it_ended_and_the_last_of_them
    mutant 'outcomes before the next step of a canary' internal/job/canary.rs \
        '(true, false) => CanaryDecision::Wait' '(true, false) => CanaryDecision::MoveUp' \
        canary::a_canary_moves_up_only_when_each_released_job_of_a_step_has_an_outcome
    mutant 'jobs of one step of a canary' internal/store/bulk.rs \
        'u32::try_from(canary.left_in_step(state, operation.done)).unwrap_or(most).min(most)' 'most' \
        internal/store/canary.rs \
        'turn.room = canary.left_in_step(&state, operation.done).min(unknown);' 'turn.room = unknown;' \
        canary::a_canary_moves_up_only_when_each_released_job_of_a_step_has_an_outcome
    mutant 'stop of a canary' internal/job/canary.rs \
        'return CanaryDecision::Stop;' 'return CanaryDecision::Release;' \
        canary::a_canary_of_which_half_fail_again_stops_by_itself_and_says_why
    mutant 'failed attempts in the outcomes of a canary' internal/store/canary.rs \
        'COALESCE({HAS_FAILED}, FALSE) AS has_failed' 'FALSE AS has_failed' \
        canary::a_failed_attempt_of_a_released_job_counts_as_a_failure_until_the_job_passes
    mutant 'verdicts behind the failures of a canary' internal/store/canary.rs \
        'WHERE f.job_id = o.id' 'WHERE f.job_id = o.id OR TRUE' \
        canary::a_lost_attempt_is_no_failure_when_its_job_is_put_off_afterwards
    mutant 'newest dead letters in the counts' internal/store/dead_letters.rs \
        'if oldest >= u64::from(most) {' 'if oldest > u64::from(most) {' \
        dead_letters::new_dead_letters_of_a_kind_are_counted_behind_any_number_of_old_ones
    mutant 'end of a canary with thousands of jobs' internal/store/canary.rs \
        '&& one_waits(conn, held.id, older).await?' '&& one_waits(conn, held.id, older).await? && older.is_nil()' \
        canary::a_canary_ends_only_when_the_oldest_of_thousands_of_jobs_has_an_outcome_too
    mutant 'step of a canary in its row' internal/store/canary.rs \
        '.bind(text(serde_json::to_string(state))?)' \
        '.bind(text(serde_json::to_string(&CanaryState { step: 0, ..state.clone() }))?)' \
        canary::a_canary_survives_the_death_of_the_runner_that_steers_it
    mutant 'jobs that a canary counts in a removal' internal/store/retention/remove.rs \
        ' || counted.contains(&candidate.id)' '' \
        canary::jobs_whose_outcomes_a_canary_counts_are_not_removed_before_its_next_step
    mutant 'token of a paused operation' internal/store/bulk.rs \
        "runner = '', token = '', lease_until = '9999" "runner = '', lease_until = '9999" \
        canary::a_paused_operation_changes_no_job_until_it_is_resumed
    mutant 'lease of a canary for older binaries' internal/store/bulk.rs \
        '{ (EXPIRED, LEFT_ALONE) }' '{ (EXPIRED, EXPIRED) }' \
        canary::a_binary_that_knows_no_canary_and_no_pause_leaves_both_alone
    mutant 'time of the step in released dead letters' internal/store/bulk.rs \
        'step.map_or(now, |step| step.max(now))' \
        'step.map_or(now, |_| now)' \
        canary::a_canary_stops_by_itself_also_when_the_clock_was_set_back_since_its_step_began
    mutant 'begin of a step behind the one before' internal/store/canary.rs \
        'since: Some(since),' \
        'since: Some(now.min(since)),' \
        canary::a_step_counts_no_job_of_the_one_before_when_the_clock_was_set_back_between_them
    mutant 'filter behind the locks of an operation' internal/store/bulk.rs \
        'jobs.retain(|id| matching.contains(id));' \
        'jobs.retain(|id| matching.contains(id) || !id.uuid().is_nil());' \
        operations::a_job_that_no_longer_matches_when_its_lock_ends_is_left_as_it_is operations::an_ended_job_that_no_longer_matches_when_a_delete_has_its_lock_is_kept
    mutant 'bytes of a batch of replays or deletes' internal/store/bulk.rs \
        'if bytes > MAX_BYTES && fit > 0 {' 'if bytes > MAX_BYTES && ids.is_empty() {' \
        operations::a_batch_of_replays_or_deletes_takes_eight_mebibytes_of_payloads
    mutant 'smaller batches after a refused one' internal/store/bulk.rs \
        'let most = most.min(size.get());' 'let most = most.max(size.get());' \
        operations::a_batch_of_an_operation_that_mysql_refuses_is_followed_by_smaller_ones
    mutant 'children that a replay takes over' internal/store/rows/links.rs \
        'if row.try_get("many")? {' 'if row.try_get::<bool, _>("many")? && parents.is_empty() {' \
        dependencies::a_replay_beyond_ten_thousand_children_is_refused_and_stops_no_other
    mutant 'seat of a start of an operation' internal/api/bulk.rs \
        'run_with_seat(api, async move { counting.count_for(action, filter).await }).await?' \
        'counting.count_for(action, filter).await?' \
        operations::a_start_of_an_operation_is_refused_while_heavy_reads_take_every_seat
    mutant 'ledger behind a schedule that is changed' internal/store/schedules/mod.rs \
        'if row.last_at.is_none() {' \
        'if row.last_at.is_none() && false {' \
        schedules::a_schedule_that_is_made_again_and_changed_ticks_behind_the_ledger_of_its_name
    mutant 'ids that are ahead in a purge' internal/store/retention/purge.rs \
        'old.extend(ahead);' \
        'drop(ahead);' \
        janitor::a_job_whose_id_is_hours_ahead_is_removed_when_its_retention_has_ended
    mutant 'start after a claim that was undone' internal/api/events.rs \
        'started_at.is_some_and(|at| at != begun_at)' \
        'started_at.is_some_and(|at| at < begun_at)' \
        events::the_start_of_a_job_is_told_also_after_a_claim_that_was_undone
    mutant 'time in the id of a start' internal/api/events.rs \
        '(number.checked_sub(1)?, number, ms.parse().ok())' \
        '(number.checked_sub(1)?, number, None)' \
        events::the_start_of_a_job_is_told_also_after_a_claim_that_was_undone
    mutant 'start in the revision of a job' internal/store/jobs/watch.rs \
        'started_at: row.try_get("started_at")?,' \
        'started_at: None,' \
        events::the_start_of_a_job_is_told_also_after_a_claim_that_was_undone
    mutant 'due time that a job shows in its revision' internal/store/jobs/watch.rs \
        'shown_due: row.try_get("shown_due")?,' \
        'shown_due: Timestamp::default(),' \
        events::a_job_that_waits_for_its_parents_tells_that_it_was_put_off
    mutant 'word of a job that is put off while it waits for its parents' internal/store/jobs/unique_keys.rs \
        'Ok((execute_at, Some(moved)))' \
        'Ok((execute_at, Some(moved).filter(|_| !is_blocked)))' \
        events::a_job_that_waits_for_its_parents_tells_that_it_was_put_off
    mutant 'one release of a group at a time' internal/store/bulk.rs \
        'new.filter.fingerprint.filter(|_| new.action == Action::Replay)' 'new.filter.fingerprint.filter(|_| false)' \
        dashboard_use::of_releases_of_a_group_that_begin_at_the_same_time_one_is_accepted
    mutant 'search among distant ids' internal/store/jobs/search.rs \
        'FROM distant_ids WHERE NOT' 'FROM distant_ids WHERE FALSE AND NOT' \
        outbox::a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is
    mutant 'bar of a job by its acceptance' internal/store/jobs/survey.rs \
        'scale.place_of(job.created_at))' 'scale.place_of(moment(ms_of(job.id))))' \
        outbox::a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is
    mutant 'sample of distant ids' internal/store/jobs/survey.rs \
        'job_of(row, each)' 'job_of(row, 1.0)' \
        survey::many_jobs_with_distant_ids_are_estimated_in_the_bar_of_their_acceptance
    mutant 'record of a distant id' internal/store/rows/jobs.rs \
        'if !distant.is_empty() {' 'if distant.len() > 9_999 {' \
        outbox::a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is
    mutant 'record of a distant id that an older binary left' internal/store/rows/jobs.rs \
        '"ON DUPLICATE KEY UPDATE created_at = VALUES(created_at)"' '""' \
        outbox::a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is
    mutant 'removal of records of distant ids' internal/store/retention/remove.rs \
        '("distant_ids", "job_id", "PRIMARY"),' '' \
        outbox::a_job_is_found_by_the_time_of_its_acceptance_however_distant_its_id_is
    mutant 'index for a small queue' internal/store/jobs/search.rs \
        'if jobs <= SMALL_QUEUE {' 'if jobs < 0 {' \
        search::the_unfinished_jobs_of_a_small_queue_are_found_at_once_among_many
    mutant 'index for a kind or a queue' internal/store/jobs/search.rs \
        'if search.walks {' 'if search.walks && filter.is_empty() {' \
        search::the_jobs_of_a_kind_or_a_queue_are_found_at_once_among_many
    mutant 'last line of a job of many lines' internal/store/jobs/search.rs \
        'SELECT job_id AS id FROM attempts s' 'SELECT job_id AS id, job_id, number, end_state FROM attempts s' \
        internal/store/jobs/search.rs \
        'self.own = last_lines_that_end_in(state);' \
        'let own = last_lines_that_end_in(state); conditions.add(&own.sql.replace("s.job_id", "w.job_id"), own.binds);' \
        operations::an_operation_finds_ended_jobs_of_thousands_of_lines
    mutant 'jobs without the value of a negation' internal/store/jobs/conditions.rs \
        'if choice.not { "IS NOT TRUE" }' 'if choice.not { "IS FALSE" }' \
        search::negations_choices_and_ranges_find_their_jobs_and_no_others
    mutant 'values of choices in the limits of a filter' internal/job/query.rs \
        'count: filter.parts().map(of).sum()' 'count: of(filter)' \
        search::each_value_of_a_choice_counts_against_the_limits_of_a_filter
    mutant 'values of choices beside paths of a body' internal/api/bulk.rs \
        'filter.parts().map(|part| part.payload.len()).sum()' 'filter.payload.len()' \
        search::each_value_of_a_choice_counts_against_the_limits_of_a_filter
    mutant 'due time that an ended job shows' internal/store/jobs/conditions.rs \
        'format!("IF(o.id IS NULL, {DUE_OF_ENDED}, {DUE_OF_OWED})")' \
        'format!("IF(o.id IS NULL, COALESCE({}, j.execute_at), {DUE_OF_OWED})", last_line("execute_at"))' \
        operations::a_due_time_selects_jobs_that_wait_for_a_turn_by_the_one_that_they_show
    mutant 'ticks behind the schedules of a survey' internal/store/jobs/survey.rs \
        'seen[place].options.schedule = None;' 'let _ = place;' \
        survey::a_survey_counts_for_a_schedule_the_jobs_that_its_filter_finds
    mutant 'place of a walk from the oldest job on' internal/store/jobs/search.rs \
        'Uuid::from_u128(rest.from.as_u128().saturating_sub(1))' 'rest.from' \
        search::a_listing_in_the_order_of_acceptance_reads_every_job_once
    mutant 'weight of a sample' internal/store/jobs/survey.rs \
        'weight: each * covered' 'weight: each' \
        survey::many_jobs_are_estimated_from_a_bounded_number_of_rows_which_the_answer_says
    mutant 'survey in windows' internal/store/jobs/survey.rs \
        'const FEW: i64 = 5_000;' 'const FEW: i64 = 5_000_000;' \
        survey::many_jobs_are_estimated_from_a_bounded_number_of_rows_which_the_answer_says
    mutant 'range that links hand on' internal/dashboard/assets/core/route.js \
        'go(handOn(new URL(to, location.href), place.get().query))' 'go(to)' \
        explorer::brushing_the_bars_narrows_the_range_of_everything
    mutant 'list that stands still beside a job' internal/dashboard/assets/pages/explorer.js \
        'selection.some || Boolean(current)' 'selection.some' \
        explorer::a_job_opens_beside_the_list_and_follows_the_keys
    mutant 'heat map that stands still' internal/dashboard/assets/ui/sheet.js \
        'if (!hovered && !focused) shown.current = of' 'shown.current = of' \
        charts::the_heat_map_stands_still_while_a_cell_is_hovered
    mutant 'range of the jobs behind a cell' internal/dashboard/assets/ui/heat-map.js \
        'at - Math.ceil(late / step) * step' 'at' \
        charts::a_cell_of_the_heat_map_says_how_late_jobs_started_and_opens_them
    mutant 'marks of other queues' internal/store/marks.rs \
        'if queue.is_some() && filter.queue.is_some()' 'if false && filter.queue.is_some()' \
        marks::charts_are_told_of_starts_pauses_and_bulk_operations
    mutant 'bound of the marks' internal/store/marks.rs \
        'marks.drain(..older);' '' \
        marks::marks_are_bounded_and_read_quickly_from_long_tables
    mutant 'pauses behind the changes of many jobs' internal/store/marks.rs \
        'if !queues.is_empty() {' 'if !queues.is_empty() && !all {' \
        marks::pauses_are_found_behind_the_changes_of_many_jobs
    mutant 'record of a lost Redis' internal/engine/index_changes.rs \
        'Some(IndexChange::Lost)' 'None' \
        marks::charts_are_told_when_redis_was_lost_and_came_back
    mutant 'end of a range of marks' internal/store/marks.rs \
        'mark.at >= from && to.is_none_or(|to| mark.at < to)' 'mark.at >= from' \
        incident::history_marks_and_audit_are_read_for_a_range_of_the_past
    mutant 'beginning of the history' internal/api/system/marks.rs \
        'oldest_sample.unwrap_or(at).max(' 'oldest_sample.unwrap_or(at).min(' \
        incident::a_history_that_began_an_hour_ago_is_not_said_to_be_kept_for_a_week
    mutant 'starts that push no loss away' internal/store/marks.rs \
        'let goes = surplus > 0 && is_start;' 'let goes = surplus > 0 && is_start && false;' \
        incident::the_page_of_an_incident_tells_of_losses_before_more_starts_than_are_read
    mutant 'pauses that began before a range' internal/store/marks.rs \
        'matches!(mark.event, MarkedEvent::QueuePaused { .. })' 'true' \
        incident::the_page_of_an_incident_tells_of_a_pause_around_the_whole_range
    mutant 'end of a range of the audit' internal/store/audit.rs \
        '(filter.to.is_some(), "at < ? AND ")' '(filter.to.is_some(), "? IS NOT NULL AND ")' \
        incident::history_marks_and_audit_are_read_for_a_range_of_the_past
    mutant 'bulk operation as one action of the audit' internal/store/audit.rs \
        'LEFT(detail, 60), NULL) AS operation' 'NULL, NULL) AS operation' \
        marks::pauses_are_found_behind_the_changes_of_many_jobs
    mutant 'bound of the causes of a range' internal/store/dead_letter_causes.rs \
        'const MAX_COUNTED: i64 = 50_000' 'const MAX_COUNTED: i64 = 5_000_000' \
        incident::causes_are_bounded_among_many
    mutant 'first failure of a younger job' internal/store/dead_letter_causes.rs \
        'SELECT fingerprint, MIN(failed_at) AS' 'SELECT fingerprint, MAX(failed_at) AS' \
        incident::causes_of_a_range_are_counted_whatever_was_done_about_them_since
    mutant 'moments in the address of an incident' internal/dashboard/assets/pages/incident.js \
        'if (!fixed) change(toRange(absolute(asked)))' '' \
        incident::an_address_without_moments_gets_them_once_and_keeps_them
    mutant 'narrowing in the links of an incident' internal/dashboard/assets/ui/incident.js \
        'only.kind && ' 'false && ' \
        incident::the_page_of_an_incident_tells_the_same_in_every_tab_and_as_markdown
    mutant 'late jobs before the history of queues' internal/dashboard/assets/ui/incident.js \
        'figures.worst.at < queuesFrom' 'false' \
        incident::the_page_of_an_incident_tells_of_late_jobs_before_the_history_of_queues
    mutant 'search that goes on' internal/dashboard/assets/ui/search.js \
        'while (found.next && found.rows.length < PAGE && !own.stopped)' 'while (!found)' \
        dashboard_use::a_search_goes_on_until_it_has_a_page_and_says_how_far_it_looked
    mutant 'text in the filter box' internal/dashboard/assets/ui/filter.js \
        'if (value !== asked.current || document.activeElement !== input.current) setText(value)' 'setText(value)' \
        dashboard_use::completed_words_stay_apart_while_the_user_types_on
    mutant 'list that stands still' internal/dashboard/assets/ui/still.js \
        'const frozen = held || hovered || focused' 'const frozen = false' \
        dashboard_use::a_list_stands_still_while_a_row_is_hovered_focused_or_chosen
    mutant 'exact numbers' internal/dashboard/assets/core/api.js \
        'parseAnswer(text)' 'JSON.parse(text)' \
        dashboard_use::numbers_of_payloads_are_shown_and_copied_as_they_were_sent
    mutant 'operation of a replayed dead letter' internal/store/bulk.rs \
        '(&operation.actor, Some(operation.id))' '(&operation.actor, None)' \
        dashboard_use::a_release_counts_the_released_jobs_alone_and_is_the_only_one_of_its_group
    mutant 'verdict on the overview' internal/dashboard/assets/ui/verdict.js \
        'if (!parts.length) return null' 'return null' \
        dashboard_use::the_overview_says_what_is_wrong_and_where_and_is_silent_otherwise
    mutant 'focus on the heading of a screen' internal/dashboard/assets/app.js \
        'now === before) heading.focus({ preventScroll: true })' 'now === before) heading.blur()' \
        dashboard_use::the_focus_goes_to_the_heading_of_each_screen_and_back_finds_the_place_again
    mutant 'place of a page in the history' internal/dashboard/assets/core/route.js \
        'else scrollTo(0, y)' 'else scrollTo(0, 0)' \
        dashboard_use::the_focus_goes_to_the_heading_of_each_screen_and_back_finds_the_place_again
    mutant 'selection kept in the history' internal/dashboard/assets/pages/explorer.js \
        'before?.of === listing ? before.ids : []' '[]' \
        dashboard_use::the_focus_goes_to_the_heading_of_each_screen_and_back_finds_the_place_again
    mutant 'text that turns the direction' internal/dashboard/assets/core/dom.js \
        '? legible(child)' '? child' \
        dashboard_use::text_that_turns_the_direction_is_written_out_wherever_it_comes_from
    mutant 'page for unknown addresses' internal/dashboard/lib.rs \
        'StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED' 'StatusCode::GONE' \
        dashboard_use::addresses_that_do_not_exist_lead_back_and_only_what_ends_something_is_red
    mutant 'bounded height of a payload' internal/dashboard/assets/app.css \
        'max-height: 36rem' 'max-height: none' \
        dashboard_use::a_huge_payload_is_shown_in_a_frame_of_bounded_height
    mutant 'whole headings of panels' internal/dashboard/assets/app.css \
        'overflow-wrap: break-word' 'word-break: break-all; flex: 1 1 0' \
        dashboard_use::headings_of_panels_are_whole_at_every_width
    mutant 'banner of an outage' internal/dashboard/assets/ui/outage.js \
        'if (!out) return null' 'return null' \
        dashboard_use::an_outage_of_mysql_is_said_once_and_no_old_figure_looks_fresh
    mutant 'second request for a screen' internal/dashboard/assets/app.js \
        'timer = setTimeout(() => begin(tries + 1), Math.min(10000, 1000 * 2 ** tries))' 'timer = 0' \
        dashboard_use::a_screen_that_did_not_come_is_asked_for_again_by_itself
    mutant 'pace of the frame' internal/dashboard/assets/app.js \
        'every: 10000, pace: 5000 }' 'every: 500, pace: 100 }' \
        internal/dashboard/assets/core/query.js 'const APART = 900' 'const APART = 0' \
        dashboard_use::a_page_of_jobs_asks_the_server_about_once_a_second_while_much_happens
    mutant 'palette of commands' internal/dashboard/assets/ui/keyboard.js \
        "event.key === 'k' && !" "event.key === 'K' && !" \
        dashboard_use::the_palette_leads_to_screens_and_queues_and_pauses_one
    mutant 'values of a word of a repeated operation' internal/dashboard/assets/ui/filter-text.js \
        'MOST_VALUES = 20' 'MOST_VALUES = 200' \
        dashboard_use::an_operation_that_is_started_again_means_the_same_jobs
    mutant 'whole filter of a repeated operation' internal/dashboard/assets/ui/filter-text.js \
        '...choices.filter(Boolean)]' ']' \
        dashboard_use::an_operation_that_is_started_again_means_the_same_jobs
    mutant 'longest time of an answer' internal/dashboard/assets/core/api.js \
        'signal: AbortSignal.any(signals)' 'signal' \
        dashboard_use::a_proxy_without_its_server_and_a_server_that_hangs_are_said_by_the_banner
    mutant 'causes that stand still' internal/dashboard/assets/pages/dead-letters.js \
        'const groups = still.rows' 'const groups = latest' \
        dashboard_use::causes_keep_their_places_under_the_mouse_and_a_failed_reading_hides_no_other
    mutant 'one stream of all tabs' internal/dashboard/assets/core/live.js \
        'const canShare = Boolean(navigator.locks)' 'const canShare = !navigator.locks' \
        dashboard_use::tabs_share_one_stream_of_events_and_the_next_one_takes_it_over
    mutant 'numbers of a failed survey' internal/dashboard/assets/pages/explorer.js \
        'last.current = null' 'last.current = found.data ?? last.current' \
        explorer::a_filter_whose_survey_fails_has_no_numbers_and_a_deleted_job_leaves_filter_and_range
    mutant 'failures behind the first released jobs' internal/store/bulk.rs \
        'if found.counted.capped {' 'if false && found.counted.capped {' \
        dashboard_use::released_jobs_that_fail_behind_the_first_ten_thousand_are_counted
    mutant 'time left for jobs that were not counted' internal/api/bulk.rs \
        'running && !operation.capped' 'running' \
        operations::a_replay_of_ten_thousand_dead_letters_keeps_its_rate_and_can_be_stopped
    mutant 'rejected rows that stand still' internal/dashboard/assets/pages/outbox.js \
        'const { rows } = still;' 'const rows = page.data?.data ?? [];' \
        dashboard_use::rejected_rows_and_operations_keep_their_places_under_the_mouse_and_are_named
    mutant 'way from a row to the button of new rows' internal/dashboard/assets/ui/still.js \
        'own.goesOn = event?.detail === 0' 'own.goesOn = false' \
        dashboard_use::new_rows_wait_until_the_user_has_gone_from_a_row_to_the_button_that_shows_them
    mutant 'open dead letter of a trial' internal/store/dead_letters.rs \
        'if status == DeadLetterStatus::Open {' 'if false && status == DeadLetterStatus::Open {' \
        dashboard_use::try_one_takes_the_newest_dead_letter_that_is_still_open
    mutant 'payload without a schema' internal/dashboard/assets/ui/json.js \
        'if (!read) return failed ? UNKNOWN : COMING;' 'if (!read) return undefined;' \
        dashboard_use::a_payload_is_hidden_while_the_schema_of_its_kind_is_not_known
    mutant 'numbers that a form sends back' internal/dashboard/assets/ui/schema-form.js \
        'String(value) !== source' 'false' \
        dashboard_use::forms_send_the_numbers_of_a_payload_as_they_were_sent
    mutant 'choices with the numbers of a payload' internal/dashboard/assets/ui/schema-form.js \
        'named === value || asInSchema(named) === asInSchema(value)' 'same(named, value)' \
        dashboard_use::forms_find_the_numbers_of_a_payload_among_the_choices_of_its_schema
    mutant 'plus of the open dead letters of a queue' internal/dashboard/assets/ui/queues.js \
        'queue.open_dead_letters_exact === false' 'false' \
        dashboard_use::open_dead_letters_of_a_queue_that_are_not_all_counted_have_a_plus
    mutant 'count of the jobs of a schedule' internal/dashboard/assets/pages/schedule.js \
        '`schedule:${it.name}` }), { every: 10000 });' '`schedule:${it.name}` }));' \
        dashboard::a_schedule_is_made_from_its_preview_triggered_and_paused
    mutant 'priority of an empty field' internal/dashboard/assets/ui/bulk.js \
        "values.priority !== ''" 'true' \
        dashboard::jobs_are_found_by_a_filter_in_the_address_and_dealt_with_together
    mutant 'dialog of a request under way' internal/dashboard/assets/ui/dialog.js \
        'if (!state.busy) close();' 'close();' \
        dashboard_use::a_dialog_stays_until_its_request_is_answered
    mutant 'readings after an outage' internal/dashboard/assets/core/query.js \
        'else if (isOut(error)) later(OUT * (1 + Math.random()));' '' \
        dashboard_use::what_is_opened_in_an_outage_comes_by_itself_afterwards
    mutant 'preview after an outage' internal/dashboard/assets/ui/bulk.js \
        'else if (isOut(error)) timer = setTimeout(read, OUT * (1 + Math.random()), 0);' '' \
        dashboard_use::a_dialog_of_an_outage_says_what_was_refused_and_previews_by_itself_afterwards
    mutant 'change that an outage refuses' internal/dashboard/assets/ui/base.js \
        "of === 'reading' && out !== null" 'out !== null' \
        dashboard_use::a_dialog_of_an_outage_says_what_was_refused_and_previews_by_itself_afterwards
    mutant 'early answer that comes late' internal/dashboard/assets/core/query.js \
        'if (late) return;' '' \
        dashboard_use::an_early_answer_that_comes_late_takes_the_place_of_no_newer_one
    mutant 'idempotency key of a dialog' internal/dashboard/assets/core/api.js \
        "headers: { 'idempotency-key': idempotencyKey }" 'headers: {}' \
        dashboard_use::a_change_whose_answer_was_lost_is_made_once_however_often_it_is_pressed
    mutant 'idempotency key of other values' internal/dashboard/assets/core/api.js \
        'if (request !== last)' 'if (last === null)' \
        dashboard_use::a_change_whose_answer_was_lost_is_made_once_however_often_it_is_pressed
    mutant 'dialog of another place' internal/dashboard/assets/ui/dialog.js \
        'shownAt(there) !== at && !busy.current && close()' 'false' \
        dashboard_use::a_dialog_names_its_job_and_closes_when_the_user_goes_back_to_another_one
    mutant 'answer of a dialog behind another place' internal/dashboard/assets/ui/dialog.js \
        '!== at && !busy.current' '!== at' \
        dashboard_use::a_dialog_names_its_job_and_closes_when_the_user_goes_back_to_another_one
    mutant 'dialog of a session that ended' internal/dashboard/assets/ui/dialog.js \
        'who?.unknown && !busy.current && close()' 'false' \
        dashboard::a_kept_key_holds_in_all_tabs_until_it_is_signed_out_in_one_of_them
    mutant 'one place of a kept key' internal/dashboard/assets/core/api.js \
        'forget(other);' '' \
        dashboard::a_kept_key_holds_in_all_tabs_until_it_is_signed_out_in_one_of_them
    mutant 'refusal of another key' internal/dashboard/assets/core/api.js \
        'response.status === 401 && used === key' 'response.status === 401' \
        dashboard::a_kept_key_holds_in_all_tabs_until_it_is_signed_out_in_one_of_them
    mutant 'sign-out of all tabs' internal/dashboard/assets/core/api.js \
        'if (key) farewell?.postMessage(keyMark());' '' \
        dashboard::a_kept_key_holds_in_all_tabs_until_it_is_signed_out_in_one_of_them
    mutant 'views of other tabs' internal/dashboard/assets/core/kept.js \
        'change(read(name, value))' 'change(value)' \
        dashboard_use::a_view_that_one_tab_saves_outlives_those_that_another_one_saves
    mutant 'last page of an export' internal/dashboard/assets/pages/explorer.js \
        'Math.min(200, MAX_ROWS - rows)' '200' \
        dashboard_use::an_export_that_was_cut_says_so_also_behind_a_short_page
    mutant 'formulas in an export' internal/dashboard/assets/pages/explorer.js \
        "typeof value === 'number' ? text : harmless(text)" 'text' \
        explorer::an_export_disarms_what_a_spreadsheet_would_execute
    mutant 'turns of the counts of queues' internal/dashboard/assets/pages/queues.js \
        'if (Object.keys(found).length > 0) await inLine();' '' \
        dashboard_use::a_page_of_many_late_queues_asks_the_server_about_once_a_second
    mutant 'turns of the pages of a listing' internal/dashboard/assets/core/query.js \
        'if (page > 0) await inLine()' 'if (page > 0) await new Promise((done) => setTimeout(done, 1000))' \
        dashboard_use::pages_of_the_schedules_are_read_in_turns_by_the_overview_and_the_palette
    mutant 'rows that the tail keeps' internal/dashboard/assets/core/events.js \
        '[...added, ...own.rows].slice(0, KEPT)' '[...added, ...own.rows]' \
        tail::the_tail_is_bounded_while_thousands_of_events_happen_and_says_what_it_leaves_out
    mutant 'rows of one drawing of the tail' internal/dashboard/assets/core/events.js \
        'const PER_DRAWING = 50' 'const PER_DRAWING = 2000' \
        tail::the_tail_is_bounded_while_thousands_of_events_happen_and_says_what_it_leaves_out
    mutant 'failures first in the tail' internal/dashboard/assets/core/events.js \
        'const matters = (event) => event.bad || !event.job' 'const matters = (event) => !event.job' \
        tail::the_tail_is_bounded_while_thousands_of_events_happen_and_says_what_it_leaves_out
    mutant 'pace of the tail' internal/dashboard/assets/pages/tail.js \
        'const PACE = 250' 'const PACE = 5000' \
        internal/dashboard/assets/pages/tail.js 'wake(own.drawn + 1000)' 'wake(own.drawn + 5000)' \
        tail::the_tail_shows_events_within_a_second_and_the_errors_of_failures_as_text
    mutant 'errors in the tail' internal/dashboard/assets/pages/tail.js \
        'found.get(row.job)?.last_error ?? null' 'null' \
        tail::the_tail_shows_events_within_a_second_and_the_errors_of_failures_as_text
    mutant 'filter of the tail' internal/dashboard/assets/core/events.js \
        'if (!wants(event)) return false' '' \
        tail::the_filter_of_the_tail_hides_other_events_and_is_kept_in_the_address
    mutant 'words that events do not have' internal/dashboard/assets/pages/tail.js \
        'filter.wrong.length > 0 ? () => false : filter.test' 'filter.test' \
        tail::the_filter_of_the_tail_hides_other_events_and_is_kept_in_the_address
    mutant 'pause of the tail' internal/dashboard/assets/pages/tail.js \
        'paused || Boolean(current)' 'Boolean(current)' \
        tail::the_tail_stands_still_while_it_is_paused_hovered_or_focused_and_counts
    mutant 'tail that is scrolled' internal/dashboard/assets/pages/tail.js \
        'Boolean(current) || away || marked' 'Boolean(current) || marked' \
        tail::the_tail_stands_still_while_it_is_paused_hovered_or_focused_and_counts
    mutant 'gap in a tab that comes back' internal/dashboard/assets/core/live.js \
        'if (absent) whole = false;' '' \
        tail::the_tail_says_that_events_may_be_missing_in_a_tab_that_comes_back_and_hears_another_one
    mutant 'seats of searches' internal/store/sql/pools.rs \
        '(self.reads - 1).clamp(1, 4)' '(self.reads + 1_000).clamp(1, 1_000)' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'seat of a forecast' internal/api/system/forecast.rs \
        'run_with_seat(&api, async move { forecast_from(&store).await }).await?' 'forecast_from(&store).await?' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'seat of an audit of a range' internal/api/audit.rs \
        'if is_range { run_with_seat' 'if is_range && false { run_with_seat' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'seat of a list of batches' internal/api/batches.rs \
        'run_with_seat(&api, found).await?' 'found.await?' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'seat of a list of order keys' internal/api/order_keys.rs \
        'run_with_seat(&api, async move { store.order_keys_in_use(asked.after, asked.blocked).await }).await?' \
        'store.order_keys_in_use(asked.after, asked.blocked).await?' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'seat of the state of the outbox' internal/api/outbox.rs \
        'run_with_seat(&api, async move {' '(async move {' \
        internal/api/outbox.rs \
        'store.source_states().await.map(|sources| (state, sources))' \
        'store.source_states().await.map(|sources| (state, sources)).map_err(Problem::from)' \
        starvation::a_flood_of_heavy_reads_stops_nothing_and_its_key_ends_at_once
    mutant 'holder of the unique key of a retried job' internal/store/jobs/actions.rs \
        'return Ok(only(ActionOutcome::UniqueKeyTaken { holder, state }));' 'return Ok(only(ActionOutcome::Held(state)));' \
        unique_keys::a_retry_whose_unique_key_another_job_took_names_that_job
    mutant 'end of keys that cannot be read' internal/broker/operator_settings.rs \
        'API_KEYS_HOLD: Duration = Duration::from_secs(10)' 'API_KEYS_HOLD: Duration = Duration::from_secs(1_000)' \
        starvation::keys_hold_for_ten_seconds_when_it_cannot_be_read_whether_they_were_revoked
    mutant 'API key of a scrape amid an outage' internal/api/http/auth.rs \
        'age > API_KEYS_HOLD && request.uri().path() != SCRAPED' 'age > API_KEYS_HOLD && !SCRAPED.is_empty()' \
        metrics::a_scrape_with_an_api_key_tells_of_an_outage_that_outlasts_the_hold
    mutant 'end of a download of a file with its key' internal/api/reports.rs \
        'bytes.take_until(async move { pass.wait_until_revoked().await })' 'bytes' \
        shared_reports::downloads_end_with_their_key_on_the_runner_with_the_file_and_on_others
    mutant 'end of a download from MySQL with its key' internal/api/reports.rs \
        '                pass.wait_until_revoked().await;' '                std::future::pending::<()>().await;' \
        shared_reports::downloads_end_with_their_key_on_the_runner_with_the_file_and_on_others
    mutant 'age of the API keys in open requests' internal/api/http/revocation.rs \
        'self.api.operator_settings.api_keys_age() <= API_KEYS_HOLD && self.is_valid(id)' 'self.is_valid(id)' \
        starvation::keys_hold_for_ten_seconds_when_it_cannot_be_read_whether_they_were_revoked
    mutant 'look of open requests at the age of the API keys' internal/api/http/revocation.rs \
        'timeout(LOOK_EVERY, self' 'timeout(LOOK_EVERY * 1_000, self' \
        starvation::keys_hold_for_ten_seconds_when_it_cannot_be_read_whether_they_were_revoked
    mutant 'token check in reap' internal/store/attempts/lease.rs \
        'owed.token == lapsed.token && owed.lease_until' 'owed.lease_until' \
        store::the_reaper_takes_only_what_has_expired_under_the_token_it_saw
    mutant 'lease check in reap' internal/store/attempts/lease.rs \
        'owed.token == lapsed.token && owed.lease_until == lapsed.until' 'owed.token == lapsed.token' \
        store::the_reaper_takes_only_what_has_expired_under_the_token_it_saw
    mutant 'sweep for lost index entries' internal/engine/reconciler.rs \
        'let put = compare.put_back(missing).await?;' 'let put = compare.put_back(missing[..0].to_vec()).await?;' \
        recovery::a_lost_ready_list_comes_back_within_its_bound
    mutant 'reads by line' internal/store/jobs/lanes.rs \
        'FROM owed FORCE INDEX (owed_line) WHERE queue = ? AND priority = ? \' \
        'FROM owed FORCE INDEX (PRIMARY) WHERE queue = ? AND priority = ? \' \
        backlog::a_look_at_due_work_reads_its_lines_and_nothing_else
    mutant 'lists of served lines alone' internal/store/jobs/lanes.rs \
        'Box::pin(async move { lines_of(conn, &queues).await })' \
        'Box::pin(async move { drop(queues); let (all, _) = queues_to_show(conn, 30_000).await?; lines_of(conn, &all).await })' \
        backlog::a_lost_list_comes_back_within_the_bound_beside_twenty_thousand_queue_names
    mutant 'turns of long lists in a pass' internal/engine/turns.rs \
        'sort.sort_by_key(|(begins, turn, _)| (*begins, *turn));' \
        'sort.sort_by_key(|(_, _, line)| std::cmp::Reverse(line.queue.clone()));' \
        internal/engine/turns.rs \
        'self.places.get(line).copied().unwrap_or(DueCursor::FRONT)' \
        'self.places.get(line).copied().and(None).unwrap_or(DueCursor::FRONT)' \
        backlog::a_lost_head_of_a_long_list_comes_back_beside_twenty_long_queues
    mutant 'front of every lane in a pass' internal/engine/reconciler.rs \
        'compare_fronts(&mut compare, &mut suspects, &fronts, until)' \
        'compare_fronts(&mut compare, &mut suspects, &fronts[..0], until)' \
        internal/engine/reconciler.rs \
        'const ROWS_IN_A_PASS: usize = 100_000;' \
        'const ROWS_IN_A_PASS: usize = 20_000;' \
        backlog::a_lost_head_of_a_long_list_comes_back_beside_twenty_long_queues
    mutant 'share of long lists in a pass' internal/engine/turns.rs \
        'let of_long_lists = rows / 2;' \
        'let of_long_lists = rows / 2 * 0;' \
        backlog::a_lost_entry_of_a_long_list_comes_back_beside_more_short_lists_than_a_pass_compares
    mutant 'queues of other living runners in a rebuild' internal/engine/reconciler.rs \
        'queues.extend(shared.store.fed_queues().await?.difference(&own).cloned());' '' \
        backlog::a_runner_that_starts_later_feeds_the_queues_that_no_other_served
    mutant 'rows that cannot be read' internal/store/jobs/lanes.rs \
        'Err(error) => unreadable(&format!("{error}, job {id}")),' 'Err(error) => return Err(error),' \
        backlog::a_row_that_cannot_be_read_costs_no_other_its_start
    mutant 'order of the index' internal/store/jobs/lanes.rs \
        'ORDER BY execute_at, id LIMIT ?)' 'ORDER BY id, execute_at LIMIT ?)' \
        backlog::a_look_at_due_work_reads_its_lines_and_nothing_else
    mutant 'attempt counted before the start' internal/store/attempts/claim.rs \
        "SET state = 'executing', attempt = attempt + 1," "SET state = 'executing', attempt = attempt + (attempt = 0)," \
        recovery::a_job_that_kills_its_runners_ends_as_failed
    mutant 'losses in the claim' internal/store/attempts/claim.rs \
        'format!(" AND losses < {SUSPECT_FROM}")' 'String::new()' \
        poison::a_job_that_aborts_its_runners_fails_and_its_neighbours_lose_two_attempts_at_most
    mutant 'no wait after the first loss' internal/store/attempts/lease.rs \
        'if owed.losses == 0 { Again::Now }' 'if owed.losses > 9 { Again::Now }' \
        store::the_first_loss_costs_a_job_neither_its_place_nor_time
    mutant 'front of the line after a loss' internal/index/first.lua \
        "redis.call('RPUSH'" "redis.call('LPUSH'" \
        poison::after_one_loss_a_job_runs_again_at_once_before_all_that_waits
    mutant 'urgent lanes are filled first' internal/index/lists.lua \
        'a.priority < b.priority' 'a.priority > b.priority' \
        index::of_two_jobs_that_become_ready_together_the_more_urgent_one_goes_to_the_waiting_fetcher
    mutant 'losses of what was interrupted' internal/store/attempts/settle.rs \
        'Verdict::Interrupted => owed.losses,' 'Verdict::Interrupted => 0,' \
        store::a_job_fails_after_three_losses_in_a_row_and_a_verdict_of_its_own_clears_them
    mutant 'room for suspects' internal/engine/suspects.rs \
        'if rests || running.len() >= most' 'if rests' \
        poison::a_flood_of_suspects_does_not_starve_ordinary_work
    mutant 'end of the attempt of a dead process' internal/engine/child.rs \
        'if let Some(reaped) = end_attempt' 'if false && let Some(reaped) = end_attempt' \
        poison::a_child_that_is_killed_loses_its_attempt_at_once_and_the_third_loss_fails_the_job
    mutant 'end of the input of a suspect' internal/app/suspect.rs \
        '        give_back.cancel();
        std::thread::sleep' '        std::thread::sleep' \
        poison::a_child_whose_runner_is_killed_gives_its_job_back_and_ends
    mutant 'word to suspects at a stop' internal/engine/child.rs \
        'running.open = None;' '' \
        poison::a_stop_gives_suspects_the_grace_and_gives_back_what_does_not_finish
    mutant 'checksum of the settings' internal/store/change_summary.rs \
        'IFNULL(BIT_XOR({row}), 0)' 'IFNULL(BIT_AND(0 * {row}), 0)' \
        change_summary::every_change_of_a_queue_or_an_api_key_changes_the_summary
    mutant 'revoked API keys out of a summary' internal/store/change_summary.rs \
        'api_keys FORCE INDEX (api_keys_revoked) WHERE revoked_at IS NULL' 'api_keys' \
        change_summary::the_summary_compares_no_revoked_api_keys_and_the_version_in_place_of_overrides
    mutant 'index of the valid API keys' internal/store/change_summary.rs \
        'FORCE INDEX (api_keys_revoked)' 'FORCE INDEX (PRIMARY)' \
        change_summary::the_valid_api_keys_are_found_among_any_number_of_revoked_ones
    mutant 'existence of API keys in a summary' internal/store/change_summary.rs \
        'EXISTS (SELECT 1 FROM api_keys)' '1' \
        change_summary::every_change_of_a_queue_or_an_api_key_changes_the_summary
    mutant 'overrides of limits out of a summary' internal/store/limits.rs \
        'changed_at, counted, breaker_since"' 'changed_at, counted, breaker_since, overrides"' \
        change_summary::the_summary_compares_no_revoked_api_keys_and_the_version_in_place_of_overrides
    mutant 'changes of limits in a summary' internal/store/limits.rs \
        '"name, version, changed_at, counted,' '"name, counted,' \
        change_summary::the_summary_compares_no_revoked_api_keys_and_the_version_in_place_of_overrides
    mutant 'API keys while other settings wait' internal/broker/operator_settings.rs \
        'API_KEYS_AGAIN_AFTER: Duration = Duration::from_secs(2)' \
        'API_KEYS_AGAIN_AFTER: Duration = Duration::from_secs(600)' \
        starvation::a_lock_on_other_settings_holds_up_no_revocation
    mutant 'time limit of a summary' internal/broker/operator_settings.rs \
        'timeout(SUMMARY_LIMIT, asking)' 'timeout(Duration::from_secs(60), asking)' \
        change_summary::settings_are_followed_while_a_table_of_the_summary_is_locked
    mutant 'next tick in a summary' internal/engine/ticker.rs \
        'summary.next_tick != next)' 'summary.next_tick != next && false)' \
        change_summary::a_schedule_that_another_process_moves_ticks_within_three_seconds
    mutant 'free operation in a summary' internal/engine/bulk_runner.rs \
        'summary.operation_is_free || ' '' \
        change_summary::a_bulk_operation_that_another_process_starts_begins_within_three_seconds
    mutant 'small looks of the scheduler' internal/index/partition.rs \
        ' && first == next)' ')' \
        change_summary::a_delayed_job_of_another_process_begins_within_three_seconds_of_its_due_time
    mutant 'epoch in small looks' internal/index/partition.rs \
        '(marks >= 2, marks % 2 == 1)' '(marks >= 1, marks % 2 == 1)' \
        index::a_small_look_sees_a_lost_epoch_also_while_a_client_listens
    mutant 'jobs due soon of a process without a runner' internal/client/connect.rs \
        '*soon = wake.take_soon();' 'let _ = wake.take_soon();' \
        change_summary::a_job_due_soon_of_a_process_without_a_runner_begins_at_its_due_time
    mutant 'blocked jobs in a summary' internal/store/change_summary.rs \
        'EXISTS (SELECT 1 FROM blocked_jobs)' '(SELECT 0)' \
        change_summary::the_summary_shows_blocked_jobs_and_remote_workers \
        dependencies::a_child_whose_parent_was_ended_by_an_older_version_is_found
    mutant 'remote workers in a summary' internal/store/change_summary.rs \
        'EXISTS (SELECT 1 FROM runners FORCE INDEX (runners_stopped)' \
        'FALSE AND EXISTS (SELECT 1 FROM runners FORCE INDEX (runners_stopped)' \
        change_summary::the_summary_shows_blocked_jobs_and_remote_workers
    mutant 'end of a connection whose work was dropped' internal/store/sql/connection.rs \
        'self.conn.close_on_drop();' '' \
        driver::a_dropped_begin_makes_a_later_acknowledged_write_vanish_unless_its_connection_is_closed
    mutant 'epoch check in move and hint' 'internal/index/move.lua internal/index/hint.lua' \
        "if redis.call('EXISTS', KEYS[1]) == 0 then return -1 end" '' \
        recovery::a_lost_epoch_leads_to_a_rebuild
    mutant 'due time in the claim' internal/store/attempts/claim.rs \
        'const IS_DUE: &str = " AND execute_at <= UTC_TIMESTAMP(6)";' 'const IS_DUE: &str = "";' \
        store::a_claim_is_refused_before_the_due_time_and_for_other_kinds
    mutant 'state in the claim' internal/store/attempts/claim.rs \
        "AND state IN ('waiting', 'retrying'){condition}" '{condition}' \
        store::an_attempt_is_claimed_by_one_of_many
    mutant 'clock after the locks of a cancel' internal/store/jobs/actions.rs \
        'let held = lock_held(conn, std::iter::once(id)).await?;
    // Read only now: the lock may have waited for a settle, whose end must not lie after what follows it.
    let now = read_clock(conn, &shared.clock).await?;' \
        'let now = read_clock(conn, &shared.clock).await?;
    let held = lock_held(conn, std::iter::once(id)).await?;' \
        store::a_cancel_and_a_settle_that_waited_for_their_row_come_after_the_wait
    mutant 'limit of the first words on a connection' internal/store/sql/connection.rs \
        'FIRST_WORDS: Duration = Duration::from_secs(5)' 'FIRST_WORDS: Duration = Duration::from_secs(60)' \
        store::a_start_survives_a_line_that_falls_silent_at_any_of_its_steps
    mutant 'clock of the store for due times' internal/store/sql/clock.rs \
        'clock.sample(sent, Instant::now(), now);
    Ok(now)' 'clock.sample(sent, Instant::now(), now);
    Ok(chrono::Utc::now())' \
        clocks::a_runner_two_hours_off_and_stepped_starts_nothing_early_and_leaves_nothing_lying
    mutant 'token of a checkpoint' internal/store/attempts/checkpoints.rs \
        'held.get(&new.id).is_some_and(|owed| owed.token == new.token)' \
        'held.contains_key(&new.id)' \
        checkpoints::an_attempt_that_lost_its_job_saves_no_checkpoint
    mutant 'checkpoint with the verdict' internal/store/attempts/settle.rs \
        'write_checkpoints(conn, &rows, now).await?;' \
        'drop(rows);' \
        checkpoints::the_next_attempt_begins_with_the_newest_checkpoint_whatever_ended_the_one_before
    mutant 'checkpoint of a retried job' internal/store/jobs/actions.rs \
        '| checkpoint_bit(conn, id.uuid()).await?' \
        '| checkpoint_bit(conn, id.uuid()).await? & 0' \
        checkpoints::a_failed_job_keeps_its_checkpoint_for_the_retry_of_an_operator_and_loses_it_when_it_is_deleted
    mutant 'locked rows apart from other checkpoints' internal/store/attempts/checkpoints.rs \
        'lock_free(conn, page.iter()' \
        'crate::rows::owed::lock_held(conn, page.iter()' \
        checkpoints::a_locked_row_delays_no_checkpoint_of_another_job
    mutant 'end of a checkpoint with its job' internal/store/attempts/settle.rs \
        'completed(step) && step.owed.links & HAS_CHECKPOINT != 0' \
        'completed(step) && step.owed.links & HAS_CHECKPOINT == u8::MAX' \
        checkpoints::the_next_attempt_begins_with_the_newest_checkpoint_whatever_ended_the_one_before
    mutant 'loop of checkpoints of a suspect' internal/engine/solo.rs \
        'checkpoints::save_until_stopped(&shared).await' \
        'drop(shared)' \
        checkpoints::a_suspect_saves_its_checkpoints_in_its_own_process
    mutant 'checkpoint of a deferred attempt' internal/store/attempts/deferred.rs \
        'if let Some(content) = &checkpoint {' \
        'if let Some(content) = checkpoint.as_ref().filter(|_| id.uuid().is_nil()) {' \
        deferred::a_handler_of_your_own_leaves_its_attempt_to_another_system_and_its_job_keeps_its_places
    mutant 'token of a deferred attempt' internal/store/attempts/deferred.rs \
        'owed.token == token && owed.state == State::Executing' \
        'owed.token != AttemptToken::from_uuid(Uuid::max()) || owed.token == token' \
        deferred::an_attempt_of_which_nothing_is_heard_times_out_and_its_key_opens_no_later_one
    mutant 'lease of a deferred attempt' internal/store/attempts/deferred.rs \
        '.bind(until.map(|until| until + MARGIN))' \
        '.bind(until.map(|_| chrono::Utc::now()))' \
        push_kinds::a_report_during_a_call_outlasts_the_beats_and_the_death_of_the_process
    mutant 'longer lease of a deferred attempt' internal/store/attempts/claim_batches.rs \
        '.filter(|_| !deferred.contains(&(id, token)))' \
        '.filter(|_| deferred.len() < usize::MAX)' \
        deferred::neither_a_stop_nor_the_death_of_its_runner_interrupts_a_deferred_attempt
    mutant 'shorter lease of a deferred attempt' internal/store/attempts/claim_batches.rs \
        'executing.iter().map(|(id, ..)| *id).collect()' \
        'executing.iter().filter(|(.., until)| !rule.has_lapsed(*until)).map(|(id, ..)| *id).collect()' \
        store::an_attempt_that_another_system_finishes_is_not_lost_with_a_lease
    mutant 'deferred attempts apart from lost ones' internal/store/attempts/lease.rs \
        '.filter(|lapsed| !deferred.contains(&(lapsed.id.uuid(), lapsed.token.uuid())))' \
        '.filter(|_| deferred.len() < usize::MAX)' \
        store::an_attempt_that_another_system_finishes_is_not_lost_with_a_lease
    mutant 'deferred attempt of a process that died' internal/store/attempts/suspects.rs \
        '.contains(&(job.uuid(), owed.token.uuid()))' \
        '.contains(&(job.uuid(), job.uuid()))' \
        store::an_attempt_that_another_system_finishes_is_not_lost_with_a_lease
    mutant 'lease that a report gave' internal/store/attempts/renewal.rs \
        'GREATEST(lease_until, {RENEWED})' \
        '{RENEWED}' \
        push_kinds::a_report_during_a_call_outlasts_the_beats_and_the_death_of_the_process
    mutant 'finish keys in a heartbeat' internal/engine/live.rs \
        'running.finish.is_made()' \
        'running.finish.is_made() && running.settling' \
        push_kinds::a_report_during_a_call_outlasts_the_beats_and_the_death_of_the_process
    mutant 'time that a report gives' internal/store/attempts/deferred.rs \
        'if until.is_some() {' \
        'if until.is_some() && id.uuid().is_nil() {' \
        deferred::reports_keep_an_attempt_alive_until_its_deadline_and_carry_its_checkpoint
    mutant 'deadline of a deferred attempt' internal/store/attempts/deferred.rs \
        'report_by.min(self.deadline_at.unwrap_or(report_by))' \
        'report_by' \
        deferred::reports_keep_an_attempt_alive_until_its_deadline_and_carry_its_checkpoint
    mutant 'time of a report beside a longer lease' internal/store/attempts/deferred.rs \
        'if still.contains(&(attempt.id.uuid(), attempt.token.uuid())) {' \
        'if still.contains(&(attempt.id.uuid(), attempt.token.uuid())) && owed.lease_until - MARGIN <= now {' \
        store::attempts_that_are_not_reported_on_time_out_also_while_a_long_lease_is_renewed
    mutant 'pause while deferred attempts are locked' internal/store/attempts/deferred.rs \
        'full && stay < overdue.len()' \
        'full && stay <= overdue.len()' \
        store::attempts_that_are_not_reported_on_time_out_also_while_a_long_lease_is_renewed
    mutant 'time of a deferred attempt in a summary' internal/engine/deferred.rs \
        'is_some_and(|summary| summary.deferred_overdue)' \
        'is_some_and(|summary| summary.deferred_overdue && shared.runner.as_str().is_empty())' \
        deferred::an_attempt_of_which_nothing_is_heard_times_out_and_its_key_opens_no_later_one
    mutant 'time to report after an outage' internal/engine/deferred.rs \
        '&& shared.heartbeats.may_call_dead(lease, lease)' \
        '&& lease > Duration::ZERO' \
        deferred::a_deferred_attempt_outlives_a_pause_a_drain_a_backlog_and_a_mysql_that_stands_still_for_longer_than_its_report
    mutant 'own lost commit recognised' internal/store/attempts/settle.rs \
        'recognise_own_work(conn, items, answers).await?;' '' \
        store::a_commit_whose_answer_is_lost_is_recognised_and_not_repeated
    mutant 'own lost commits recognised with one request' internal/store/attempts/settle.rs \
        'unclear.chunks(MAX_ROWS)' 'unclear.chunks(1)' \
        store::late_verdicts_of_a_batch_are_noted_with_few_requests \
        store::a_batch_whose_commit_was_not_answered_is_recognised_with_few_requests
    mutant 'notes of late verdicts in one request' internal/store/attempts/settle.rs \
        '.clamp(1, MAX_ROWS)' '.clamp(1, 1)' \
        store::late_verdicts_of_a_batch_are_noted_with_few_requests
    mutant 'rebuild of an index that went back in time' internal/index/partition.rs \
        'if sequence <= shared.sequence.fetch_max(sequence, Ordering::Relaxed) {' \
        'if sequence == 0 && shared.sequence.fetch_max(sequence, Ordering::Relaxed) == 0 {' \
        redis_faults::an_index_that_went_back_in_time_is_rebuilt_though_no_connection_broke
    mutant 'new connection after an error of Redis' internal/index/link.rs \
        '} else if state.wire.take().is_some() {' '} else if false && state.wire.take().is_some() {' \
        redis_faults::after_a_failover_the_new_master_is_found_though_old_connections_live_on
    mutant 'pause between connections' internal/index/link.rs \
        'self.not_before = Some(Instant::now() + self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0));' \
        'self.not_before = None;' \
        redis_faults::a_dead_redis_is_not_hammered
    mutant 'horizon of the index' internal/index/hint.lua \
        'elseif due <= far then' 'elseif due <= far * 2 then' \
        redis_faults::jobs_beyond_the_horizon_leave_the_memory_of_redis_flat
    mutant 'owner of the refill' internal/index/refilled.lua \
        "if redis.call('GET', KEYS[2]) == ARGV[3] then redis.call('DEL', KEYS[2]) end" "redis.call('DEL', KEYS[2])" \
        redis_faults::a_refill_that_took_too_long_leaves_its_successors_lock_alone
    mutant 'unique index as the lock of an idempotency key' internal/store/idempotency.rs \
        'INSERT INTO idempotency_keys' 'INSERT IGNORE INTO idempotency_keys' \
        enqueue_once::fifty_callers_with_one_key_and_body_on_two_runners_make_one_job
    mutant 'body compared before a replay' internal/store/idempotency.rs \
        '} else if self.request == idempotent.request {' '} else if true {' \
        enqueue_once::fifty_callers_with_one_key_and_different_bodies_make_one_job
    mutant 'idempotency key in the transaction of its jobs' internal/store/jobs/idempotent_inserts.rs \
        'store_responses(conn, &mut keys, now).await?;' \
        'store_responses(conn, &mut keys, now).await?; sqlx::raw_sql("COMMIT").execute(&mut *conn).await?;' \
        enqueue_once::a_request_that_fails_in_the_middle_leaves_no_key_and_may_be_sent_again
    mutant 'own row after a lost commit' internal/store/idempotency.rs \
        'if self.id == idempotent.id {' 'if false {' \
        enqueue_once::a_commit_whose_answer_is_lost_is_not_done_again_and_its_answer_is_the_first
    mutant 'caller in the idempotency key' internal/broker/idempotency.rs \
        'digest.update(caller);' '' \
        enqueue_once::a_key_belongs_to_its_token_and_to_one_call
    mutant 'state of a holder that is replaced' internal/store/jobs/unique_keys.rs \
        'if !still_waits(owed.state) {' 'if false {' \
        enqueue_once::unique_keys_stay_exact_while_their_holders_run_and_end
    mutant 'time of a unique key after the end of its job' internal/store/rows/unique_keys.rs \
        '(x.completed = 0 OR k.held_until' '(TRUE OR k.held_until' \
        unique_keys::a_unique_key_stays_taken_for_its_time_after_its_job_completed
    mutant 'unique keys of ended jobs in one request' internal/store/rows/unique_keys.rs \
        'for ended in ended.chunks(MAX_ROWS) {' 'for ended in ended.chunks(1) {' \
        store::the_unique_keys_of_a_batch_of_ends_are_released_with_few_requests
    mutant 'end of that time with a failure' internal/store/attempts/settle.rs \
        'step.item.id.uuid(), step.state == State::Completed)' 'step.item.id.uuid(), true)' \
        unique_keys::a_job_that_failed_or_was_cancelled_frees_its_unique_key_at_once
    mutant 'unique key of a job that started' internal/store/jobs/key_holders.rs \
        'if started && options.unique_until == UniqueUntil::Start && !taken.timed {' 'if started && options.unique_until == UniqueUntil::Start && taken.over {' \
        unique_keys::work_requested_while_a_job_runs_becomes_one_job_of_its_own
    mutant 'delivery under way that a cancel leaves alone' internal/api/compat/delayed.rs \
        'cancel_job(api, id, false,' 'cancel_job(api, id, true,' \
        compat_delayed::a_cancel_and_a_delivery_at_the_same_moment_never_both_win
    mutant 'jobs that are no messages' internal/api/compat/delayed.rs \
        'if !job.options.tags.iter()' 'if false && !job.options.tags.iter()' \
        compat_delayed::a_message_can_be_cancelled_twice_but_not_while_it_is_sent
    mutant 'kinds of a key for messages' internal/api/compat/delayed.rs \
        'asker.may_enqueue(HttpCallback::NAME, &payload, "")?;' '' \
        compat_delayed::messages_need_an_api_key_that_may_enqueue_and_the_setting
    mutant 'code of a task under any status' internal/handlers/later.rs \
        'any_status: true' 'any_status: false' \
        compat_later::only_the_code_100_is_a_success_whatever_the_status_is
    mutant 'time limit of a task' internal/handlers/later.rs \
        'Duration::from_secs(3);' 'Duration::from_secs(5);' \
        compat_later::a_receiver_has_three_seconds
    mutant 'tasks that are over' internal/api/compat/later.rs \
        '|| job.state.is_end()' '' \
        compat_later::a_task_is_repeated_after_10_20_and_40_seconds_and_is_then_forgotten
    mutant 'rare looks into a quiet outbox' internal/engine/outbox.rs \
        'if self.last_row.elapsed() < BUSY_FOR { LOOK_EVERY } else { LOOK_RARELY }' 'LOOK_EVERY' \
        outbox_sources::an_idle_runner_that_has_moved_rows_asks_both_servers_ten_times_a_second_at_most
    mutant 'frequent looks into an outbox with rows' internal/engine/outbox.rs \
        'if self.last_row.elapsed() < BUSY_FOR { LOOK_EVERY } else { LOOK_RARELY }' 'LOOK_RARELY' \
        outbox_sources::an_idle_runner_that_has_moved_rows_asks_both_servers_ten_times_a_second_at_most
    mutant 'rare looks into a quiet outbox of an application' internal/engine/outbox_sources.rs \
        'last.elapsed() < BUSY_FOR' 'last.elapsed() < BUSY_FOR * 60' \
        outbox_sources::an_idle_runner_that_has_moved_rows_asks_both_servers_ten_times_a_second_at_most
    mutant 'rare looks into an outbox without rows' internal/engine/outbox_sources.rs \
        'LOOK_RARELY: Duration = Duration::from_secs(1);' 'LOOK_RARELY: Duration = Duration::from_millis(50);' \
        outbox_sources::an_idle_runner_with_an_outbox_asks_both_servers_ten_times_a_second_at_most
    mutant 'nested batches of a retry' internal/api/batches.rs \
        'Choice::of_batches(std::iter::once(id).chain(nested))' \
        'Choice::of_batches(std::iter::once(id).chain(nested.into_iter().take(1)))' \
        batches::a_retry_of_a_batch_reaches_the_failed_jobs_of_its_nested_batches
    mutant 'batches nested in those of a retry' internal/store/batches/read.rs \
        'next.push(nested);' 'drop(nested);' \
        batches::a_retry_of_a_batch_reaches_the_failed_jobs_of_its_nested_batches
    mutant 'most batches of a retry' internal/store/batches/read.rs \
        '|| failed.len() > MAX_WITH_FAILURES' '|| failed.len() > 10 * MAX_WITH_FAILURES' \
        batches::a_retry_of_a_batch_with_too_many_nested_ones_is_refused
    mutant 'most levels of a retry' internal/store/batches/read.rs \
        'if levels > MAX_NESTED_LEVELS' 'if levels > 10 * MAX_NESTED_LEVELS' \
        batches::a_retry_of_a_batch_with_too_many_nested_ones_is_refused
    mutant 'cancelled batches of a retry' internal/store/batches/read.rs \
        'AND b.cancelled_at IS NULL AS may_retry' 'AS may_retry' \
        batches::a_retry_of_a_batch_leaves_its_cancelled_nested_batches_alone
    mutant 'parents of a chain' internal/api/jobs/mod.rs \
        'if body.chain
            && let' 'if body.chain
            && ids.len() < 2
            && let' \
        dependencies::the_jobs_of_a_chain_run_one_after_the_other_without_a_word_about_parents \
        dependencies::a_failure_in_a_chain_ends_it_unless_a_job_says_otherwise
    mutant 'parents of a chain of a client' internal/client/direct.rs \
        'RequestShape::Chain && place > 0' 'RequestShape::Chain && place > 1' \
        client::a_chain_of_every_client_runs_in_its_order_and_once_for_its_key
    mutant 'parent of a chain that a job names as well' internal/api/jobs/mod.rs \
        'parent.id(&ids) != Ok(before)' 'parent.id(&ids) != Ok(before) || place > 99' \
        dependencies::the_jobs_of_a_chain_run_one_after_the_other_without_a_word_about_parents
    mutant 'unique keys in a chain' internal/api/jobs/mod.rs \
        'body.chain && place > 0' 'body.chain && place > 1' \
        dependencies::a_chain_takes_no_job_that_another_one_may_answer_for
    mutant 'index of the rows of ended parents' internal/store/jobs/dependencies.rs \
        'WHERE id IN {places} ORDER BY id LIMIT {}", rows.len());' 'WHERE id IN {places}");' \
        dependencies::children_start_while_another_session_holds_the_row_of_another_parent
    mutant 'last wait of a message' internal/api/compat/delayed.rs \
        '8_000, 16_000]' '8_000, 8_000]' \
        compat_delayed::a_delivery_that_fails_with_5xx_is_repeated_after_1_2_4_8_and_16_seconds
    mutant 'attempts of a message' internal/api/compat/delayed.rs \
        'max_attempts: Some(1 + RETRY_DELAYS_MS.len() as u32),' 'max_attempts: Some(RETRY_DELAYS_MS.len() as u32),' \
        compat_delayed::a_delivery_that_fails_with_5xx_is_repeated_after_1_2_4_8_and_16_seconds
    mutant 'idempotency key of a message' internal/api/compat/delayed.rs \
        'key.request("POST /schedule", Some(&text))?;' 'key.request("POST /schedule", Some(&text))?.filter(|_| false);' \
        compat_delayed::a_message_that_is_scheduled_twice_with_one_idempotency_key_is_one_message
    mutant 'service that cannot be called' internal/app/kinds.rs \
        '.and_then(|delayed| calls.problem_of_text(&delayed.url));' \
        '.and_then(|delayed| calls.problem_of_text(&delayed.url)).filter(|_| false);' \
        internal/app/mod.rs \
        '&& let Some(problem) = kinds::callbacks(config).problem_of(&delayed.url).await' \
        '&& let Some(problem) = kinds::callbacks(config).problem_of(&delayed.url).await.filter(|_| false)' \
        compat_delayed::a_service_that_cannot_be_called_is_named_at_the_start
    mutant 'first wait of a task' internal/handlers/later.rs \
        'Duration::from_secs(10);' 'Duration::from_secs(11);' \
        compat_later::a_task_is_repeated_after_10_20_and_40_seconds_and_is_then_forgotten
    mutant 'longest wait of a task' internal/handlers/later.rs \
        'cap_ms: ms(RETRY_CAP),' 'cap_ms: 60_000,' \
        compat_later::each_wait_of_a_task_is_twice_as_long_as_the_one_before_up_to_a_week
    mutant 'idempotency key of a task' internal/api/compat/later.rs \
        'key.request("POST /create", Some(&text))?;' 'key.request("POST /create", Some(&text))?.filter(|_| false);' \
        compat_later::a_task_that_is_created_twice_with_one_idempotency_key_is_one_task
    mutant 'names of fields of a task in any case' internal/api/compat/any_case.rs \
        'name.to_ascii_lowercase().into_deserializer()' 'name.into_deserializer()' \
        compat_later::names_of_fields_count_in_any_case_and_a_null_is_a_field_left_out
    mutant 'null in a task' internal/api/compat/later.rs \
        'use crate::http::body::{AnyMediaBody, or_default};' \
        "use crate::http::body::AnyMediaBody; fn or_default<'de, T: Deserialize<'de>, D: serde::Deserializer<'de>>(from: D) -> Result<T, D::Error> { T::deserialize(from) }" \
        compat_later::requests_that_are_not_valid_get_400_and_unknown_tasks_404
    mutant '500 without MySQL' internal/api/compat/refusal.rs \
        'StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS' 'StatusCode::TOO_MANY_REQUESTS' \
        compat_later::without_mysql_the_answer_is_500
    mutant 'note in place of a result that is too large' internal/engine/executor.rs \
        'if bytes <= limits::MAX_RESULT_BYTES {' 'if bytes > 0 {' \
        shared_reports::a_result_that_is_too_large_for_a_file_completes_its_job_with_a_note
    mutant 'large result after a stop' internal/handlers/report/large_result.rs \
        'self.share_after_work(file, ctx).await?' 'self.share(file, ctx).await?' \
        shared_reports::a_large_result_that_comes_after_a_cancel_completes_its_job
    mutant 'results that are too large for their jobs' internal/app/kinds.rs \
        'registry.keep_large_results(finished.clone());' '' \
        shared_reports::a_result_that_is_too_large_for_its_job_becomes_a_file
    mutant 'postpone whose COMMIT was not answered' internal/store/jobs/unique_keys.rs \
        'all_put_off(conn, &decided.postponed).await?' 'all_put_off(conn, &decided.postponed).await? && false' \
        unique_keys::a_job_that_a_lost_commit_put_off_is_the_answer_after_it_started
    mutant 'holder that a job in front puts off' internal/store/jobs/unique_keys.rs \
        'Some(EnqueuedJob::Existing(holder)) => *holder,' \
        'Some(EnqueuedJob::Existing(holder)) if holder.foreign => *holder,' \
        unique_keys::a_job_behind_one_that_puts_a_job_off_in_its_batch_is_answered_with_that_job \
        import::a_line_behind_one_that_puts_a_job_off_is_answered_with_that_job
    mutant 'longest wait of a postponed job' internal/store/jobs/unique_keys.rs \
        '|latest| asked.min(latest))' '|latest| asked.max(latest.min(asked)))' \
        unique_keys::requests_put_a_waiting_job_off_but_not_beyond_its_longest_wait
    mutant 'due time of a job that is asked for earlier' internal/store/jobs/unique_keys.rs \
        '|latest| asked.min(latest)).max(before);' '|latest| asked.min(latest));' \
        unique_keys::requests_put_a_waiting_job_off_but_not_beyond_its_longest_wait
    mutant 'unique keys of unfinished jobs' internal/store/retention/forget.rs \
        'if row.try_get::<bool, _>("free")? {' 'if true {' \
        unique_keys::the_times_of_unique_keys_are_checked_and_end
    mutant 'condition of a change' internal/store/jobs/change.rs \
        'if request.condition.as_ref().is_some_and(|holds| !holds(&job, &attempts)) {' 'if false {' \
        change::of_many_changes_with_one_tag_one_is_made_and_every_answer_about_a_job_has_its_tag
    mutant 'own change after a lost commit' internal/store/jobs/change.rs \
        'earlier == PriorRun::MayHaveCommitted && was_recorded' 'earlier == PriorRun::Nothing && was_recorded' \
        change::a_change_whose_commit_was_not_answered_is_recognised_and_not_repeated
    mutant 'own change of a job that has ended since' internal/store/jobs/change.rs \
        'let outcome = outcome_by_now(&job, held.get(&id));' \
        'if !held.contains_key(&id) { return refuse(conn, request, ChangeOutcome::Refused(job.state)).await; }
        let outcome = outcome_by_now(&job, held.get(&id));' \
        change::a_call_whose_commit_was_not_answered_is_done_once_although_its_job_has_ended_since
    mutant 'stored answer of an own change' internal/store/jobs/change.rs \
        'request.idempotent.as_ref(), done()).await?' 'request.idempotent.as_ref(), done()).await?.filter(|_| false)' \
        change::a_call_whose_commit_was_not_answered_is_done_once_although_its_job_has_ended_since
    mutant 'own action after a lost commit' internal/store/jobs/actions.rs \
        'if !was_recorded(conn, act).await? {' 'if !was_recorded(conn, act).await? || true {' \
        change::a_call_whose_commit_was_not_answered_is_done_once_although_its_job_has_ended_since
    mutant 'due time behind the expiry in the errors' internal/api/jobs/change.rs \
        'Problem::new(Code::InvalidRequest, detail).at("", vec![here])' \
        'Problem::new(Code::InvalidRequest, detail).at("", vec![here][1..].to_vec())' \
        change::a_refused_change_or_replay_points_at_its_body_although_the_cause_lies_in_the_job
    mutant 'payload in the errors about a kind that is gone' internal/api/jobs/change.rs \
        'if !matches!(invalid, Invalid::UnknownKind { .. }) {' 'if true {' \
        change::a_refused_change_or_replay_points_at_its_body_although_the_cause_lies_in_the_job
    mutant 'field in the errors about a replay of a kind that is gone' internal/api/dead_letters.rs \
        'if !matches!(invalid, Invalid::UnknownKind { .. }) {' 'if true {' \
        change::a_refused_change_or_replay_points_at_its_body_although_the_cause_lies_in_the_job
    mutant 'turns of a change at the keys of its job' internal/store/jobs/subjects.rs \
        'subjects.extend(keys);' 'subjects.extend(keys.into_iter().take(0));' \
        order::cancels_that_wait_for_a_locked_order_key_hold_up_no_other_change \
        unique_keys::retries_and_replays_that_wait_for_a_locked_unique_key_hold_up_no_other_change
    mutant 'turns of a replay at the keys of its job' internal/store/dead_letters.rs \
        'subjects.extend(keys_of(&job));' 'subjects.extend(keys_of(&job).take(0));' \
        unique_keys::retries_and_replays_that_wait_for_a_locked_unique_key_hold_up_no_other_change
    mutant 'two values for one path of a filter' internal/api/bulk.rs \
        'Ok(path) if filter.payload.contains_key(&path) => {' 'Ok(path) if false && filter.payload.contains_key(&path) => {' \
        operations::an_operation_that_cannot_be_meant_is_refused_and_a_key_starts_it_once
    mutant 'ids in q beside the ids of a filter' internal/api/bulk.rs \
        '} else if !self.ids.is_empty() && !filter.ids.is_empty() {' '} else if false && !self.ids.is_empty() {' \
        operations::an_operation_that_cannot_be_meant_is_refused_and_a_key_starts_it_once
    mutant 'name of a wrong wait' internal/api/jobs/result.rs \
        'Problem::at("wait", detail)' 'Problem::at("", detail)' \
        api::a_result_is_200_when_over_202_while_not_and_the_waiter_is_woken
    mutant 'key of a part of an import' internal/api/jobs/import.rs \
        'key.part(self.part)' 'key.part(self.part + u64::from(rand::random::<u32>()))' \
        import::an_import_that_breaks_off_anywhere_is_sent_again_and_does_nothing_twice
    mutant 'end of a paused import at a stop' internal/api/jobs/import.rs \
        'tokio::time::sleep(STOPPING).await' 'tokio::time::sleep(STOPPING * 600).await' \
        import::an_import_whose_sender_pauses_gets_its_last_line_when_the_runner_stops
    mutant 'names that are no text in a digest' internal/job/canonical_json.rs \
        'Err(text) => write!(out, "?{text}"),' 'Err(text) => Err(io::Error::other((*text).to_owned())),' \
        import::lines_behind_a_name_that_is_no_text_belong_to_the_body_of_an_import
    mutant 'rest of the body of a refused import' internal/api/jobs/import.rs \
        'self.forget_rest(FORGETTING).await;' 'self.forget_rest(Duration::ZERO).await;' \
        import::a_refused_import_is_answered_to_a_client_that_sends_first
    mutant 'code of a line whose batch is over' internal/api/jobs/import.rs \
        'detail.ends_with(TAKES_NO_MORE)' 'detail.starts_with(TAKES_NO_MORE)' \
        batches::a_line_of_an_import_into_a_batch_that_is_over_says_wrong_state
    mutant 'answer to a part that is not valid any more' internal/api/jobs/import.rs \
        'find_response(idempotent).await?,' 'find_response(idempotent).await?.filter(|_| false),' \
        import::a_part_that_was_carried_out_gets_its_answer_again_when_its_lines_are_not_valid_any_more
    mutant 'answer about a job that is gone' internal/store/jobs/change.rs \
        'return refuse(conn, request, ChangeOutcome::Missing).await;' \
        'return Ok(IdempotentOutcome::Refused(ChangeOutcome::Missing));' \
        enqueue_once::requests_about_things_that_are_gone_get_their_first_answer_again
    mutant 'clients that do not read' internal/app/connection.rs \
        'if longer(&self.blocked_since, patience.write) {' 'if false {' \
        limits::a_client_that_does_not_read_is_cut_off_long_before_one_that_rests
    mutant 'probes beyond the bound on connections' internal/app/turned_away.rs \
        'if reads && PROBES.contains(' 'if !reads && PROBES.contains(' \
        limits::probes_are_answered_also_beyond_the_bound_on_connections
    mutant 'end of streams at a stop' internal/api/events.rs \
        '*self.stopping.borrow_and_update()' 'false' \
        events::open_streams_end_with_their_runner_and_do_not_hold_it_up
    mutant 'pause in the queue order' internal/engine/queue_order.rs \
        'if self.paused[queue] {' 'if false {' \
        queues::a_paused_queue_starts_nothing_on_any_runner_until_it_goes_on
    mutant 'batches of claims' internal/engine/reaper.rs \
        'page.lapsed, theirs, round).await?.min(open);' \
        'page.lapsed.into_iter().take(0).collect(), theirs, round).await?.min(open);' \
        claims::attempts_of_a_killed_runner_are_found_behind_any_number_of_jobs
    mutant 'transaction of a claim' internal/store/attempts/claim.rs \
        'script.push("BEGIN", Vec::new());' 'script.push("DO 0", Vec::new());' \
        store::a_claim_that_was_given_up_is_rolled_back_or_given_back_and_burns_nothing
    mutant 'memory of claims without an answer' internal/store/attempts/claim.rs \
        'self.open.gave_up(token, &ids);' 'self.open.gave_up(token, &ids[..0]);' \
        store::a_claim_that_was_given_up_is_rolled_back_or_given_back_and_burns_nothing
    mutant 'memory of attempts that have ended' internal/store/attempts/settle.rs \
        'self.open.all_ended(items.iter().map(' 'self.open.all_ended(items.iter().take(0).map(' \
        store::the_row_of_a_claim_goes_also_if_the_caller_of_its_verdict_has_gone_away
    mutant 'memory of attempts that were handed out, and twins left out' internal/store/attempts/claim_batches.rs \
        'if *held == token => {}' 'if *held == token && ids.is_empty() => {}' \
        internal/store/sql/group_commit.rs \
        '.is_some_and(|row| !seen.insert(row));' '.is_some_and(|row| !seen.insert(row)) && false;' \
        store::an_id_that_is_twice_in_a_batch_starts_once_whatever_else_is_in_it
    mutant 'heartbeat behind a permit, and behind the fetcher' internal/engine/permits.rs \
        'gaps_now == Some(confirmed.gaps) && confirmed.since.elapsed() < lease' 'gaps_now == Some(confirmed.gaps)' \
        internal/engine/heartbeat_history.rs \
        'beats.last.is_some_and(|last| last.elapsed() < lease).then_some(beats.gaps)' \
        'Some(beats.gaps.min(u64::from(lease.is_zero())))' \
        internal/engine/fetcher.rs \
        'if !shared.heartbeats.is_beating(shared.settings.lease) {' 'if false {' \
        queues::a_permit_that_waited_for_work_is_not_good_after_its_holder_slept
    mutant "steps of the database's clock" internal/engine/heartbeat_history.rs \
        'let before = self.reading.replace(reading)?;' 'let before = self.reading.replace(reading).filter(|_| false)?;' \
        clocks::a_runner_that_starts_after_a_step_of_the_clock_of_mysql_judges_no_other_by_it
    mutant 'request after a lowered limit' internal/engine/permits.rs \
        'let same_limit = limit == turn.limit && !settled;' 'let same_limit = !settled;' \
        queues::a_lowered_limit_holds_on_a_runner_that_is_never_short_of_jobs
    mutant 'wait for other runners to hear of a limit' internal/engine/permits.rs \
        'let may_start = self.settles.is_none() && ' 'let may_start = ' \
        internal/engine/permits.rs \
        '(counts.settles.is_none() && counts.used <= counts.granted)' 'counts.used <= counts.granted' \
        queues::a_new_limit_counts_the_jobs_of_a_runner_that_hears_of_it_later
    mutant 'permits of other queues behind a locked row' internal/store/attempts/permits.rs \
        'FOR UPDATE NOWAIT' 'FOR UPDATE' \
        queues::a_runner_that_freezes_in_a_transaction_holds_up_only_the_queue_whose_row_it_has_locked
    mutant 'look at permits' internal/engine/permits.rs \
        'confirm_permits(shared).await;' '' \
        queues::a_limited_queue_goes_on_for_longer_than_a_lease
    mutant 'look at permits, and the end of those that were not looked at' internal/engine/permits.rs \
        'confirm_permits(shared).await;' '' \
        internal/engine/permits.rs \
        '&& confirmed.since.elapsed() < lease;' '&& confirmed.since.elapsed() < 1_000 * lease;' \
        queues::permits_that_are_gone_are_asked_for_anew
    mutant 'heartbeats behind what silent runners hold, and their open attempts' internal/engine/permits.rs \
        'heartbeats.may_call_dead(lease, theirs)' 'theirs >= Duration::ZERO' \
        internal/store/attempts/permits.rs \
        'permits = permits.min(open_attempts(conn, queue, &holder).await?);' 'permits = 0;' \
        queues::a_limit_holds_after_mysql_stood_still
    mutant 'heartbeat behind the fetcher' internal/engine/fetcher.rs \
        'if !shared.heartbeats.is_beating(shared.settings.lease) {' 'if false {' \
        claims::a_runner_whose_heartbeat_is_not_answered_takes_no_new_work_until_it_is
    mutant "beats ahead of the database's clock" internal/engine/reaper.rs \
        'if beat.heartbeat_at <= at + SLACK {' 'if beat.heartbeat_at <= at + TimeDelta::days(1) {' \
        clocks::a_clock_of_mysql_that_is_set_ahead_and_back_ends_no_attempt
    mutant 'renewals that count page by page' internal/store/attempts/lease.rs \
        'renewed(&page.iter().filter(is_renewed).cloned().collect::<Vec<_>>());' \
        'if page.len() < MAX_ROWS {
                renewed(&live.iter().filter(is_renewed).cloned().collect::<Vec<_>>());
            }' \
        store::a_beat_that_renews_some_pages_counts_for_those
    mutant 'lost attempts one by one' internal/store/attempts/lease.rs \
        'Err(error) => tracing::warn!(%error, attempts = lapsed.len(), "cannot end lost attempts together"),' \
        'Err(error) => return Err(error),' \
        claims::one_lost_attempt_that_cannot_be_ended_does_not_keep_the_others_lost
    mutant 'ticks one by one' internal/engine/ticker.rs \
        'Err(error) if !error.is_transient() => {
            tracing::warn!' \
        'Err(error) if !error.is_transient() && rows.is_empty() => {
            tracing::warn!' \
        schedules::schedules_that_cannot_be_read_or_written_stop_no_other_however_many_they_are
    mutant 'keys that are being made in a tick' internal/store/schedules/ticks.rs \
        'if are_being_made(conn, &keys).await? {' 'if keys.len() > 1_000 && are_being_made(conn, &keys).await? {' \
        schedules::a_schedule_whose_order_key_another_session_is_making_holds_up_no_other_schedule
    mutant 'turns of changes of a schedule' internal/store/schedules/rows.rs \
        'Subject::Schedule(name.clone())' 'Subject::UniqueKey(name.to_string(), JobId::new().to_string())' \
        schedules::requests_that_wait_for_a_locked_schedule_or_the_key_of_a_trigger_hold_up_no_other_change
    mutant 'turns of triggers with one order key' internal/store/schedules/ticks.rs \
        'Subject::OrderKey(order.key.clone())' 'Subject::UniqueKey(order.key.clone(), JobId::new().to_string())' \
        schedules::requests_that_wait_for_a_locked_schedule_or_the_key_of_a_trigger_hold_up_no_other_change
    mutant 'jobs of schedules that are replaced together' internal/store/schedules/ticks.rs \
        'let done = cancel_all(conn, &held, &ordered, &errors, now).await?;' \
        'let mut done = crate::jobs::actions::CancelledJobs::default();
    for (id, owed) in held {
        let one = cancel_all(conn, &BTreeMap::from([(id, owed)]), &ordered, &errors, now).await?;
        done.cancelled.extend(one.cancelled);
        done.stop_requested.extend(one.stop_requested);
        for (of, ended) in one.counts {
            *done.counts.entry(of).or_default() += ended;
        }
    }' \
        schedules::ticks_that_replace_many_waiting_jobs_fire_also_when_mysql_is_slow
    mutant 'smaller transactions of ticks' internal/store/schedules/ticks.rs \
        'unwrap_or(u32::MAX), &ticked);' 'unwrap_or(u32::MAX), &Ok::<(), StoreError>(()));' \
        schedules::ticks_that_mysql_refuses_together_fire_in_smaller_transactions
    mutant 'room of one transaction of ticks' internal/broker/schedules.rs \
        'PlanRoom::new(self.store.ticks_at_once())' 'PlanRoom::new(self.store.ticks_at_once().max(400))' \
        schedules::ticks_that_mysql_refuses_together_fire_in_smaller_transactions
    mutant 'seats of a fetcher that waits' internal/engine/fetcher.rs \
        'free.truncate(1);' 'free.truncate(MAX_AT_ONCE);' \
        order::jobs_of_a_key_that_take_longer_than_a_turn_follow_each_other_on_an_idle_runner
    mutant 'ticks before the declaration in a preview' internal/api/schedules/preview.rs \
        'after = after.max(*anchor);' 'after = after.max(*anchor - TimeDelta::nanoseconds(1));' \
        schedules::a_preview_shows_the_ticks_that_a_put_at_the_same_moment_makes
    mutant 'first moment of a preview' internal/api/schedules/preview.rs \
        '|from| from - TimeDelta::nanoseconds(1)' '|from| from' \
        schedules::a_preview_shows_the_ticks_that_a_put_at_the_same_moment_makes
    mutant 'turns of cancels of an operation' internal/store/bulk.rs \
        'Subject::Operation(id)' 'Subject::UniqueKey(id.to_string(), JobId::new().to_string())' \
        operations::requests_that_wait_for_a_locked_operation_hold_up_no_other_change
    mutant 'turns of pauses of an operation' internal/store/bulk_pauses.rs \
        'Subject::Operation(id)' 'Subject::UniqueKey(id.to_string(), Uuid::now_v7().to_string())' \
        operations::requests_that_wait_for_a_locked_operation_hold_up_no_other_change
    mutant 'progress that a report leaves out' internal/store/attempts/deferred.rs \
        'report.after(before.and_then(' 'report.after(before.filter(String::is_empty).and_then(' \
        deferred::a_report_keeps_what_it_leaves_out
    mutant 'turns of reports on an attempt' internal/store/attempts/deferred.rs \
        '[Subject::Job(id), Subject::Change]' '[Subject::Job(JobId::new()), Subject::Change]' \
        deferred::reports_that_wait_for_a_locked_job_hold_up_no_other_change
    mutant 'pages of due schedules' internal/store/schedules/mod.rs \
        'for page in 0..MAX_PAGES {' 'for page in 0..1 {' \
        schedules::schedules_that_cannot_be_read_or_written_stop_no_other_however_many_they_are
    mutant 'bound on interruptions' internal/store/attempts/settlement.rs \
        'matches!(self.again, Again::NowWithinBounds)' 'false' \
        store::a_lease_that_could_not_be_renewed_spares_a_job_only_so_often
    mutant 'permits of open attempts' internal/store/attempts/permits.rs \
        'permits.min(open_attempts(conn, queue, &holder).await?)' 'permits.min(open_attempts(conn, queue, &holder).await?).min(0)' \
        queues::a_permit_is_not_free_while_an_attempt_under_it_is_open
    mutant 'search for ids of ended jobs' internal/engine/permits.rs \
        'const STALE: u32 = 4;' 'const STALE: u32 = 4_000_000;' \
        queues::ids_of_ended_jobs_do_not_hold_up_a_queue_with_a_limit
    mutant 'search for ids of ended jobs without a limit' internal/engine/permits.rs \
        'const STALE_UNLIMITED: u32 = 16;' 'const STALE_UNLIMITED: u32 = 16_000_000;' \
        queues::ids_of_ended_jobs_do_not_hold_up_a_queue_without_a_limit
    mutant 'word to the fetcher of free permits' internal/engine/permits.rs \
        '() = shared.permits.freed.notified() => wake_fetcher(shared).await' '() = std::future::pending::<()>() => wake_fetcher(shared).await' \
        queues::a_limited_queue_goes_on_while_the_row_of_another_one_is_locked
    mutant 'retries that commit late' internal/store/verify/evidence.rs \
        'MAX_CHANGE: TimeDelta = TimeDelta::minutes(2)' 'MAX_CHANGE: TimeDelta = TimeDelta::minutes(0)' \
        verify::a_check_holds_nothing_between_two_pages_and_believes_no_difference_between_them
    mutant 'what others hold of a limit' internal/store/attempts/permits.rs \
        'shares.others = shares.others.saturating_add(holder.permits);' '' \
        queues::a_limit_holds_over_all_runners_and_does_not_slow_what_is_within_it
    mutant 'nudge of a fetcher that waits' internal/index/partition.rs \
        'pipe.lpush(&key, "1").ltrim(&key, 0, 0).expire(&key, 60);' 'pipe.expire(&key, 60);' \
        queues::a_limit_holds_over_all_runners_and_does_not_slow_what_is_within_it
    mutant 'share of the least urgent' internal/engine/queue_order.rs \
        'self.turn.is_multiple_of(SHARE).then_some(self.turn / SHARE)' 'None' \
        queues::urgent_queues_and_jobs_go_first_equals_take_turns_and_the_last_do_not_starve
    mutant 'dead letter with the failure' internal/store/attempts/settle.rs \
        'insert_dead_letters(conn, &dead_letters).await?;' 'insert_dead_letters(conn, &dead_letters[..0]).await?;' \
        dead_letters::a_flood_of_failures_on_two_runners_is_counted_exactly
    mutant 'state of an operation in a batch' internal/store/bulk.rs \
        'locked.token == held.token && locked.state == OperationState::Running' 'locked.token == held.token' \
        operations::a_replay_of_ten_thousand_dead_letters_keeps_its_rate_and_can_be_stopped
    mutant 'lease of an operation that rests' internal/engine/bulk_runner.rs \
        'if took + rest >= LEASE / 2 {' 'if took + rest >= LEASE * 1_000 {' \
        operations::a_runner_keeps_its_operation_while_it_rests_after_a_wait_for_a_locked_row
    mutant 'loss of an operation to another runner' internal/store/bulk.rs \
        'BatchOutcome { over: true, lost: true,' 'BatchOutcome { over: true, lost: false,' \
        operations::a_runner_whose_operation_another_one_has_taken_does_not_take_it_for_ended
    mutant 'answer to a repeated request for an operation' internal/store/bulk.rs \
        'sent_before.as_ref(), Some(())).await? {' 'sent_before.as_ref(), Some(())).await?.filter(|_| false) {' \
        operations::an_operation_that_was_accepted_gets_its_answer_again_while_too_many_run
    mutant 'lock of a replay' internal/store/dead_letters.rs \
        'in_list(lock, ids, " ORDER BY id FOR UPDATE")' 'in_list(lock, ids, " ORDER BY id")' \
        dead_letters::a_replay_sent_twice_with_one_key_makes_one_job
    mutant 'producer of the holder of a unique key' internal/store/jobs/key_holders.rs \
        'foreign: !producer.reaches(&options),' 'foreign: !producer.reaches(&options) && options.timeout_ms.is_some(),' \
        security::a_unique_key_shows_and_replaces_only_what_its_own_producer_made
    mutant 'end of what lasts with its key' internal/api/http/revocation.rs \
        'key.id == id && key.revoked.is_none()' 'key.id == id' \
        security::streams_imports_and_waits_end_with_their_key_on_every_runner
    mutant 'jobs of a key that was revoked' internal/api/workers.rs \
        'let Ok(delivery) = pass.wait_for(waiting).await? else {' 'let Ok(delivery) = waiting.await else {' \
        security::streams_imports_and_waits_end_with_their_key_on_every_runner
    mutant 'place of a request for a result' internal/api/jobs/result.rs \
        'if permit.is_none() {' 'if permit.is_none() && wait.is_zero() {' \
        security::one_key_takes_a_share_of_the_requests_that_wait_for_results_also_with_few_connections
    mutant 'share of a key' internal/api/http/shares.rs \
        'if own >= self.share() {' 'if own >= self.most {' \
        security::one_key_takes_a_share_of_streams_and_imports_and_leaves_room_for_others_and_operators
    mutant 'foreign readers of an open API' internal/api/http/origin.rs \
        'if foreign && !followed {' 'if foreign && !reads && !followed {' \
        security::an_open_api_refuses_pages_of_other_sites_proxies_and_hosts_that_cannot_be_read
    mutant 'share of a fleet in the waits for jobs' internal/api/workers.rs \
        'api.polls.take(sharing.0)' 'api.polls.take(sharing.0.filter(|_| false))' \
        remote_workers::one_api_key_leaves_waits_to_other_api_keys_and_to_operators
    mutant 'parents and batches in the jobs of a worker' internal/api/http/caller.rs \
        'if self.works_only { view' 'if self.works_only && view.after.len() > 9 { view' \
        remote_workers::a_work_key_learns_no_id_of_a_parent_or_a_batch
    mutant 'batches for a worker' internal/api/http/auth.rs \
        'Self::ReadOrEnqueue => scope != Scope::Work,' 'Self::ReadOrEnqueue => true,' \
        remote_workers::a_work_key_learns_no_id_of_a_parent_or_a_batch
    mutant 'kinds of a key' internal/api/http/caller.rs \
        'let (pointer, missing) = if !may(kind) {' 'let (pointer, missing) = if !may(kind) && kind.is_empty() {' \
        security::a_key_for_some_kinds_enqueues_no_others
    mutant 'most errors of an answer' internal/api/http/problem.rs \
        'const MAX_ERRORS: usize = 50;' 'const MAX_ERRORS: usize = 1 << 30;' \
        security::what_is_wrong_with_a_body_takes_no_more_room_than_a_page
    mutant 'characters that steer a terminal' cmd/tickr/print.rs \
        'if !text.contains(written_out) {' 'if !text.contains(written_out) || !text.is_empty() {' \
        security::what_a_command_prints_steers_no_terminal
    mutant 'pause after a wrong key' internal/api/http/failed_logins.rs \
        'const STEP: Duration = Duration::from_millis(100);' 'const STEP: Duration = Duration::ZERO;' \
        security::keys_that_are_tried_in_vain_are_slowed_and_good_ones_are_not
    mutant 'address of a wrong key' internal/api/http/auth.rs \
        'record_failure(request.extensions().get::<Peer>().copied())' \
        'record_failure(request.extensions().get::<Peer>().copied().filter(|_| false))' \
        security::a_key_that_is_tried_in_vain_is_logged_with_its_address
    mutant 'allowed addresses of mails' internal/handlers/email/mod.rs \
        'problems.extend(check::not_allowed(email, &self.senders, &self.recipients));' \
        'problems.extend(check::not_allowed(email, &self.senders, &self.recipients).into_iter().skip(99));' \
        security::mails_name_only_senders_and_recipients_that_the_configuration_allows
    mutant 'revoked keys' internal/api/http/auth.rs \
        '.filter(|key| key.revoked.is_none())' '.filter(|_| true)' \
        api_keys::api_keys_open_what_their_scope_names_are_stored_as_digests_and_end_when_revoked
    mutant 'previous job in the way of a tick' internal/store/schedules/ticks.rs \
        '.filter(|id| self.held.contains_key(id))' '.filter(|_| false)' \
        schedules::a_tick_does_not_fire_while_the_previous_job_has_not_ended_if_it_says_skip
    mutant 'older jobs in the way of a tick' internal/store/schedules/previous.rs \
        'if !jobs.contains(&job) {' 'if jobs.is_empty() && !jobs.contains(&job) {' \
        schedules::a_job_beside_which_a_trigger_fired_is_still_in_the_way_of_a_tick
    mutant 'definition that cannot be read' internal/store/schedules/rows.rs \
        'definition.unwrap_or_else(|_| wanted.clone())' \
        'definition.or_else(|error| (wanted.unanchored && false).then(|| wanted.clone()).ok_or(error))?' \
        schedules::a_schedule_that_cannot_be_read_is_replaced_by_a_put_and_by_a_start
    mutant 'problem of a schedule that cannot be read' internal/api/schedules/mod.rs \
        'matches!(error, StoreError::Corrupt { .. })' 'matches!(error, StoreError::Overloaded { .. })' \
        schedules::one_schedule_that_cannot_be_read_hides_no_other
    mutant 'least lateness of misfire skip' internal/job/schedule/draft.rs \
        'self.misfire == Some(Misfire::Skip) && grace < LEAST_GRACE_OF_SKIP' \
        'self.misfire == Some(Misfire::Skip) && grace < LEAST_GRACE_OF_SKIP && false' \
        schedules::what_is_wrong_with_a_schedule_is_said_all_at_once_and_where
    mutant 'queue of the kind of a schedule of the file' internal/app/schedules.rs \
        'if !declared.names_queue' 'if !declared.names_queue && false' \
        declared_kinds::a_schedule_of_the_file_goes_to_the_queue_of_its_declared_kind
    mutant 'queue of the kind in the form of a schedule' internal/dashboard/assets/ui/schedules.js \
        'if (v.queue.trim()) body.queue = v.queue.trim();' "body.queue = v.queue.trim() || 'default';" \
        dashboard::a_schedule_of_the_form_goes_to_the_queue_of_its_declared_kind
    mutant 'pause in the plan of ticks' internal/broker/schedules.rs \
        'row.paused.as_ref().map(|_| SkipCause::Paused)' 'None' \
        schedules::while_it_is_paused_its_ticks_pass_and_say_so
    mutant 'ledger behind a name that is used again' internal/store/schedules/mod.rs \
        'last_tick_of(conn, name).await?.map_or(now, |last| last.max(now))' 'last_tick_of(conn, name).await?.map_or(now, |_| now)' \
        schedules::a_change_takes_effect_at_once_and_what_was_due_before_it_gets_its_line
    mutant 'last line read again behind the lock of a purge' internal/store/retention/remove.rs \
        'discarded.is_none() && finished_at < now - age' 'discarded.is_none() && finished_at < now + age + TimeDelta::hours(1)' \
        bounds::a_job_that_ended_anew_before_the_purge_had_its_lock_stays
    mutant 'rows that another session locks in a purge' internal/store/retention/remove.rs \
        'Removal::Asked) { "" } else { SKIP_LOCKED }' 'Removal::Asked) { "" } else { "" }' \
        bounds::ended_jobs_that_another_session_locks_hold_up_the_removal_of_no_other
    mutant 'locked rows in front of discarded jobs' internal/store/retention/purge.rs \
        '.bind(passed * DISCARDED)' '.bind(passed / PASSED)' \
        bounds::ended_jobs_that_another_session_locks_hold_up_the_removal_of_no_other
    mutant 'smaller pages of a purge' internal/store/retention/purge.rs \
        'if !matches!(purged, Ok(Purged { jobs: 0, .. })) {' 'if purged.is_ok() {' \
        bounds::a_purge_that_mysql_does_not_carry_out_goes_on_in_smaller_pages
    mutant 'smaller pages of rows that go by their age' internal/store/rows/aged.rs \
        'if !matches!(purged, Ok((0, _))) {' 'if purged.is_ok() {' \
        bounds::a_purge_that_mysql_does_not_carry_out_goes_on_in_smaller_pages
    mutant 'unfinished jobs in a purge' internal/store/retention/remove.rs \
        'self.last.filter(|_| !self.owed)' 'self.last.filter(|_| !self.owed || self.kind != REPORT)' \
        bounds::a_retried_job_that_waits_or_runs_is_not_purged
    mutant 'index of a delete beside locked rows' internal/store/retention/remove.rs \
        'STRAIGHT_JOIN {table} t FORCE INDEX ({index}) ON' 'STRAIGHT_JOIN {table} t IGNORE INDEX ({index}) ON' \
        bounds::ended_jobs_that_another_session_locks_hold_up_the_removal_of_no_other
    mutant 'lines of one transaction of a removal' internal/store/retention/remove.rs \
        'if lines > 0 && is_full {' 'if lines > MAX_LINES * 10 && is_full {' \
        operations::a_delete_takes_every_line_of_its_jobs_and_no_other
    mutant 'schedules of one transaction of a removal' internal/store/retention/remove.rs \
        ' || !shrunk.has_room_for(&candidate)' '' \
        bounds::a_purge_of_jobs_of_many_schedules_goes_on_in_another_transaction
    mutant 'ticks marked together in a removal' internal/store/retention/remove.rs \
        'for jobs in jobs.chunks(MAX_ROWS) {' 'for jobs in jobs.chunks(1) {' \
        bounds::a_purge_marks_the_ticks_of_hundreds_of_jobs_in_one_statement
    mutant 'note of a batch that lost a job' internal/store/retention/remove.rs \
        'self.batches.retain(|_, (size, jobs)| jobs < size);' 'self.batches.clear();' \
        verify::what_operators_and_retention_remove_is_told_from_what_is_lost
    mutant 'note of a tick that lost its job' internal/store/retention/remove.rs \
        'SET job_removed = TRUE' 'SET job_removed = FALSE' \
        verify::what_operators_and_retention_remove_is_told_from_what_is_lost
    mutant 'pauses and limits in verify' internal/store/verify/startable.rs \
        '!self.still.contains(queue)' 'true' \
        verify::what_waits_on_purpose_breaks_no_promise
    mutant 'torn batches counted again' internal/verify/lib.rs \
        'if !gone && there + removed < u64::from(batch.size) {' 'if there + removed < u64::from(batch.size) || removed == 0 {' \
        verify::a_check_holds_nothing_between_two_pages_and_believes_no_difference_between_them
    mutant 'retries meanwhile' internal/verify/lib.rs \
        'if counted + retried < *jobs {' 'if counted < *jobs + retried - retried {' \
        verify::a_check_holds_nothing_between_two_pages_and_believes_no_difference_between_them
    mutant 'children that were retried' internal/store/verify/links.rs \
        'WHERE e.job_id = p.child_id AND e.end_state IS NOT NULL' \
        'WHERE e.job_id = p.child_id AND e.end_state IS NULL AND FALSE' \
        verify::what_operators_do_with_children_and_callbacks_breaks_no_promise
    mutant 'deleted callbacks of batches' internal/store/verify/links.rs \
        'self.without_deleted(missing).await' 'Ok(missing.len())' \
        verify::what_operators_do_with_children_and_callbacks_breaks_no_promise
    mutant 'removed callbacks of batches' internal/store/retention/remove.rs \
        'write_callbacks(conn, &self.callbacks, now).await?' 'write_callbacks(conn, &[], now).await?' \
        verify::a_callback_that_retention_has_removed_is_not_missing
    mutant 'open places of unfinished jobs' internal/store/verify/evidence.rs \
        'WHERE j.id = o.id AND j.options LIKE {HAS_ORDER_KEY}' \
        'WHERE j.id = o.id AND j.id IS NULL AND j.options LIKE {HAS_ORDER_KEY}' \
        verify::a_seeded_fault_lights_its_check
    mutant 'last life of a retried job in its line' internal/verify/order.rs \
        'let LifeSpan { start, end } = row.lives.last()?;' \
        'let [LifeSpan { start, end }] = row.lives.as_slice() else { return None };' \
        verify::each_life_of_a_retried_job_is_compared_with_the_other_jobs_of_its_order_key
    mutant 'earlier lives of a retried job in its line' internal/verify/order.rs \
        'faults.extend(overlaps(rows, moment));' 'faults.extend(overlaps(&rows[..0], moment));' \
        verify::each_life_of_a_retried_job_is_compared_with_the_other_jobs_of_its_order_key
    mutant 'snapshot of one page' internal/store/verify/evidence.rs \
        'sqlx::raw_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ").execute(&mut self.conn).await?;' '' \
        internal/store/verify/evidence.rs \
        'sqlx::raw_sql("ROLLBACK").execute(&mut self.conn).await?;' '' \
        verify::a_check_holds_nothing_between_two_pages_and_believes_no_difference_between_them
    mutant 'batches that a check cannot read' internal/store/verify/links.rs \
        'self.cannot_read("batches", &BatchId::from_uuid(id).to_string(), &error);
                        continue;' \
        'return Err(error);' \
        verify::a_row_that_cannot_be_read_is_told_and_is_not_green
    mutant 'limits that a check cannot read' internal/store/verify/limits.rs \
        'self.cannot_read("limits", row.try_get("name").unwrap_or("without a name"), &error);' \
        'return Err(error);' \
        verify::a_row_that_cannot_be_read_is_told_and_is_not_green
    mutant 'faults found before MySQL failed' internal/verify/lib.rs \
        '&& report.is_untouched()' '&& report.errors.is_empty()' \
        verify::a_row_that_cannot_be_read_is_told_and_is_not_green
    mutant 'end of a check' internal/verify/lib.rs \
        'Self::Gentle { all, .. } => all.saturating_sub(began.elapsed()),' 'Self::Gentle { .. } => Duration::MAX,' \
        verify::a_check_whose_time_ends_reports_the_faults_that_it_has_found
    mutant 'verdict without Redis' internal/verify/report.rs \
        'if self.verdict == VerifyVerdict::Kept {' 'if self.verdict == VerifyVerdict::Broken {' \
        verify::without_redis_the_tables_are_checked_all_the_same
    mutant 'expiry in a bulk reschedule' internal/store/bulk.rs \
        'if due.zip(expiries.get(&id)).is_some_and(' 'if due.zip(expiries.get(&id)).filter(|_| false).is_some_and(' \
        operations::a_reschedule_leaves_jobs_out_that_expire_by_their_new_due_time
    mutant 'expiry in a dry run' internal/store/jobs/search.rs \
        'if waits && due.zip(expires_at)' 'if waits && false && due.zip(expires_at)' \
        operations::a_reschedule_leaves_jobs_out_that_expire_by_their_new_due_time
    mutant 'retry of a schedule in a check before a rollout' internal/app/check.rs \
        'Err(Invalid::Payload { problems, .. } | Invalid::Job { problems }) => problems,' \
        'Err(Invalid::Payload { problems, .. }) => problems,
            Err(Invalid::Job { .. }) => return,' \
        explain::a_check_before_a_rollout_names_a_schedule_whose_retry_its_kind_would_refuse
    mutant 'jobs in a dry run that wait for their turn' internal/store/jobs/search.rs \
        'if waits && action.is_some_and(' 'if waits && false && action.is_some_and(' \
        operations::a_dry_run_leaves_jobs_out_that_wait_for_their_turn_as_the_operation_does
    mutant 'priority of an operation in the job' internal/store/bulk.rs \
        '(priority, params.priority.is_some())' '(priority, params.reason.is_some())' \
        operations::a_priority_that_an_operation_set_outlives_the_end_of_the_job
    mutant 'index of stopped runners' internal/store/runners.rs \
        'FORCE INDEX (runners_stopped)' 'IGNORE INDEX (runners_stopped)' \
        bounds::ten_thousand_stopped_runners_cost_nobody_anything_and_go_after_a_week
    mutant 'rest of a tally' internal/store/retention/forget.rs \
        'const REST: i64 = 600;' 'const REST: i64 = -10;' \
        bounds::tallies_of_a_thousand_queues_end_and_every_sum_stays
    mutant 'refusal of a strict runner' internal/app/mod.rs \
        'if config.strict_durability {' 'if config.strict_durability && weaknesses.is_empty() {' \
        durability::readyz_says_whether_commits_are_durable_with_a_binary_log_and_a_strict_runner_does_not_start_otherwise
    mutant 'wait of a scrape' internal/api/system/metrics.rs \
        'PATIENCE: Duration = Duration::from_millis(500)' 'PATIENCE: Duration = Duration::from_secs(60)' \
        metrics::a_scrape_answers_while_mysql_and_redis_do_not_and_says_so
    mutant 'label of queues without a runner' internal/api/system/metrics.rs \
        'if named.contains(&count.queue) {' 'if !count.queue.as_str().is_empty() {' \
        metrics::the_page_has_what_the_table_has_and_no_label_that_a_caller_made_up
    mutant 'silence of the crates of the wire' internal/telemetry/logs.rs \
        'if is_quiet(&target, level) {' 'if is_quiet(&target, level) && target.is_empty() {' \
        logs::no_secret_and_no_payload_shows_in_the_log_or_the_metrics_at_any_level
    mutant 'reason of a rejected row out of the log' internal/broker/outbox.rs \
        'for (id, _) in &pass.rejected {' 'for (id, reason) in &pass.rejected {' \
        internal/broker/outbox.rs \
        'tracing::warn!(row = %id, "a row of the outbox was' 'tracing::warn!(row = %id, %reason, "a row of the outbox was' \
        logs::no_secret_and_no_payload_shows_in_the_log_or_the_metrics_at_any_level
    mutant 'limit of the last spans' internal/telemetry/traces.rs \
        'FLUSH: Duration = Duration::from_secs(2)' 'FLUSH: Duration = Duration::from_secs(120)' \
        traces::a_collector_that_hangs_or_is_gone_costs_spans_and_nothing_else
    mutant 'catch around the check of a kind' internal/handlers/registry.rs \
        'caught(|| self.checked(payload)).map_err(' 'Ok::<_, String>(self.checked(payload)).map_err(' \
        panics::a_schedule_whose_payload_panics_stops_no_other_and_says_so
    mutant "payload read within the attempt's task" internal/handlers/registry.rs \
        'Box::pin(async move {
            let typed = serde_json::from_str::<H::Payload>(payload.get());' \
        'let typed = serde_json::from_str::<H::Payload>(payload.get());
        Box::pin(async move {' \
        panics::a_type_that_panics_over_a_payload_costs_the_attempt_and_no_worker
    mutant 'editions of the living before a job fails unread' internal/engine/unread.rs \
        'if !may_be_read {' 'if !may_be_read || number > 0 {' \
        versions::what_one_version_cannot_read_waits_for_the_other_and_burns_nothing
    mutant 'editions that have tried' internal/engine/unread.rs \
        'Ok(said) => refused.extend(said.iter().filter_map(|error| Edition::named_in(error))),' \
        'Ok(said) => refused.extend(said.iter().take(0).filter_map(|error| Edition::named_in(error))),' \
        versions::a_job_that_every_living_version_has_refused_fails_though_all_of_them_live
    mutant 'editions that have tried, in the checker' internal/verify/drift.rs \
        'refused.get(&job.id).unwrap_or(&nothing)' '&nothing' \
        versions::a_job_that_waits_for_a_worker_of_the_other_version_is_no_fault
    mutant 'distant ids of young jobs in the checker' internal/store/verify/evidence.rs \
        'let distant = since.map(|since| (since, Uuid::nil()));' \
        'let distant = since.filter(|_| false).map(|since| (since, Uuid::nil()));' \
        verify::a_check_of_young_jobs_looks_at_those_that_waited_in_an_outbox
    mutant 'leaving alone what was given back' internal/engine/worker.rs \
        'if shared.unread.postpone(shared, id).await {' 'if shared.unread.postpone(shared, id).await && false {' \
        versions::when_no_living_version_can_read_a_job_it_fails_within_its_bound_and_says_so
    mutant 'bound of verdicts on their way to MySQL' internal/engine/worker_pool.rs \
        'self.settling.acquire().await.ok()' 'self.settling.try_acquire().ok()' \
        workers::a_worker_runs_the_next_jobs_while_mysql_writes_the_verdicts_of_the_last_ones
    mutant 'a worker for each handler' internal/engine/worker_pool.rs \
        'free: Semaphore::new(workers),' 'free: Semaphore::new(2 * workers),' \
        workers::no_more_handlers_run_at_once_than_there_are_workers
    mutant 'patience of a job that was claimed ahead' internal/engine/worker_pool.rs \
        'PATIENCE: Duration = Duration::from_millis(500)' 'PATIENCE: Duration = Duration::from_secs(3_600)' \
        workers::jobs_claimed_ahead_wait_again_as_if_unclaimed_when_handlers_become_slow
    mutant 'turns of reports for a connection' internal/app/kinds.rs \
        '.with_connections(config.reports.connections)' '' \
        report::reports_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs
    mutant 'turns of mails for a connection' internal/handlers/email/mod.rs \
        '(Route::Smtp(Box::new(SmtpPool::new(smtp)?)), Some(room))' \
        '(Route::Smtp(Box::new(SmtpPool::new(smtp)?)), Some(room).filter(|_| false))' \
        kinds::mails_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs
    mutant 'claim of a report without a connection' internal/engine/executor.rs \
        'rest.map_or(Again::Unstarted, Again::UnstartedFor)' 'rest.map_or(Again::Unstarted, Again::After)' \
        report::reports_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs
    mutant 'last free worker beside reports that wait' internal/engine/executor.rs \
        'shared.workers.has_free_worker()' 'true' \
        report::reports_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs
    mutant 'permits beside reports that wait' internal/engine/executor.rs \
        '!scarce && ' '' \
        report::reports_without_a_connection_leave_the_permits_of_a_limited_queue_to_other_jobs
    mutant 'reports that wait in the demand of a queue' internal/store/jobs/demand.rs \
        'demand.due += jobs;' '' \
        report::reports_without_a_connection_wait_without_attempts_and_leave_the_workers_to_other_jobs
    mutant 'text when the server prepares nothing' internal/store/sql/script.rs \
        '!has_room_for_statements()' 'false' \
        mysql_faults::jobs_are_accepted_and_run_while_the_server_prepares_no_statement
    mutant 'API keys are read as text' internal/store/api_keys.rs \
        'rows_as_text(conn, sql, Vec::new())' 'sqlx::query(sqlx::AssertSqlSafe(sql)).fetch_all(conn)' \
        mysql_faults::a_revoked_key_is_refused_while_the_server_prepares_no_statement
    mutant 'last attempts are not claimed ahead' internal/engine/worker.rs \
        'let ahead = shared.workers.is_ahead();' 'let ahead = shared.workers.is_ahead() && false;' \
        workers::a_job_on_its_last_attempt_is_claimed_only_when_a_worker_is_free
    mutant 'an undone claim leaves no attempt' internal/store/attempts/settle.rs \
        'let undone = item.is_unstarted() && owed' 'let undone = false && item.is_unstarted() && owed' \
        workers::jobs_claimed_ahead_wait_again_as_if_unclaimed_when_handlers_become_slow
    mutant 'undone claim whose COMMIT was not answered' internal/store/attempts/settle.rs \
        'if item.is_unstarted() { undone(row) }' 'if item.is_unstarted() && false { undone(row) }' \
        store::an_undone_claim_whose_commit_was_not_answered_is_no_lost_lease
    mutant 'no note of a handler that was not started' internal/store/attempts/settle.rs \
        'matches!(answers[*place], Settled::NotOurs) && !item.is_unstarted();' \
        'matches!(answers[*place], Settled::NotOurs) && item.number > 0;' \
        store::an_undone_claim_whose_commit_was_not_answered_is_no_lost_lease
    mutant 'state of a retry whose claim is undone' internal/store/attempts/settle.rs \
        'StateInput::Undo { tried: burned > 1 }' 'StateInput::Undo { tried: burned > 100 }' \
        store::a_retry_whose_claim_is_undone_is_retrying_again
    mutant 'place of an undone claim' internal/engine/executor.rs \
        'shared.broker.hint_first(claimed.id,' 'shared.broker.hint(claimed.id,' \
        ahead::jobs_whose_claim_was_undone_are_the_next_to_start
    mutant 'place of a last attempt without a worker' internal/engine/worker.rs \
        'shared.broker.hint_first(job.id,' 'shared.broker.hint(job.id,' \
        ahead::jobs_on_their_last_attempt_that_found_no_worker_are_the_next_to_start
    mutant 'no start after a stop' internal/engine/executor.rs \
        'if stop.reason().is_some() {' 'if stop.reason().is_some() && false {' \
        ahead::a_hurried_stop_starts_nothing_of_what_was_claimed_ahead_and_burns_no_attempt
    mutant 'no start after the lease' internal/engine/executor.rs \
        'lasting(shared.settings.lease)) {' 'lasting(shared.settings.lease)) && false {' \
        ahead::a_runner_that_was_frozen_starts_no_job_whose_lease_is_over
    mutant 'pause before a start' internal/engine/executor.rs \
        'if settings.drained || is_paused(&settings, &claimed.queue) {' 'if settings.drained {' \
        ahead::a_pause_holds_for_jobs_that_were_claimed_ahead
    mutant 'drain before a start' internal/engine/executor.rs \
        'if settings.drained || is_paused(&settings, &claimed.queue) {' 'if is_paused(&settings, &claimed.queue) {' \
        ahead::a_drain_holds_for_jobs_that_were_claimed_ahead
    mutant 'limit before a start' internal/engine/permits.rs \
        'counts.granted == UNLIMITED || (counts.settles.is_none()' 'true || (counts.settles.is_none()' \
        ahead::a_limit_holds_for_jobs_that_were_claimed_ahead_of_it
    mutant 'a held job has no due time' internal/store/rows/jobs.rs \
        'if turns.held.contains(&job.id) {' 'if turns.held.contains(&job.id) && false {' \
        order::a_job_that_is_held_is_not_made_due_and_costs_redis_nothing
    mutant 'host of a job' internal/job/limit.rs \
        'SharedBy::Host => by.host,' 'SharedBy::Host => by.host.filter(|host| host.is_empty()),' \
        receivers::a_limit_for_each_host_holds_over_all_runners_however_the_host_is_written
    mutant 'one text for each way to write a host' internal/handlers/http/host.rs \
        'address.and_then(|address| address.to_ipv4_mapped())' 'address.and_then(|_| None::<std::net::Ipv4Addr>)' \
        receivers::a_limit_for_each_host_holds_over_all_runners_however_the_host_is_written
    mutant 'failures before a breaker opens' internal/store/rows/breakers.rs \
        '!open && self.failures < rule.breaker.failures' '!open && self.failures <= rule.breaker.failures' \
        receivers::a_breaker_opens_after_its_failures_and_parked_jobs_burn_no_attempt
    mutant 'failures in a row' internal/store/rows/breakers.rs \
        '        if outcome == CallOutcome::Answered {
            *self = Self::default();' \
'        if outcome == CallOutcome::Answered {
            self.failed_at = Some(now);' \
        receivers::a_breaker_opens_after_its_failures_and_parked_jobs_burn_no_attempt
    mutant 'open breaker in a claim' internal/store/rows/limits.rs \
        'self.open_gate(bounds).is_none_or(|(gate, rule)| gate.may_probe(rule, self.now))' 'self.open_gate(bounds).is_none_or(|(gate, rule)| gate.is_open(rule))' \
        receivers::an_open_breaker_outlives_a_flush_and_an_outage_of_redis
    mutant 'one call of a half-open breaker' internal/store/rows/breakers.rs \
        '!self.probing && (self.probe_at <= now' '(self.probe_at <= now' \
        receivers::one_call_at_a_time_decides_over_two_runners
    mutant 'pause of a breaker' internal/store/rows/breakers.rs \
        'self.probe_at <= now || self.probe_at > latest' 'self.probe_at <= latest || self.probe_at > latest' \
        receivers::the_pause_doubles_up_to_the_longest_and_no_call_comes_before_its_end
    mutant 'doubled pause' internal/store/rows/breakers.rs \
        'pause.saturating_mul(2)' 'pause.saturating_mul(1)' \
        receivers::the_pause_doubles_up_to_the_longest_and_no_call_comes_before_its_end
    mutant 'longest pause' internal/store/rows/breakers.rs \
        'let longest = rule.breaker.max_pause_ms;' 'let longest = rule.breaker.max_pause_ms * 16;' \
        receivers::the_pause_doubles_up_to_the_longest_and_no_call_comes_before_its_end
    mutant 'call of a dead runner' internal/store/rows/breakers.rs \
        'AND s.kept_until IS NULL)) AS probing' 'AND s.kept_until IS NULL) OR TRUE) AS probing' \
        receivers::a_call_that_was_to_decide_and_lost_its_runner_is_made_again
    mutant 'last error in the log of a breaker' internal/store/attempts/breakers.rs \
        'failures, pause_ms, "a breaker opened' 'failures, pause_ms, error = self.state.last_error.as_deref(), "a breaker opened' \
        logs::a_breaker_that_opens_logs_neither_the_answer_nor_the_path
    mutant 'call that counted before the answer was lost' internal/store/attempts/breakers.rs \
        'earlier == PriorRun::MayHaveCommitted || call.call.in_doubt' \
        'earlier != PriorRun::MayHaveCommitted && call.call.in_doubt' \
        receivers::a_call_counts_once_when_the_answer_to_its_commit_is_lost
    mutant 'attempt of a call that counted' internal/store/attempts/breakers.rs \
        'uncounted.contains(&counts(call))' \
        'uncounted.iter().any(|(key, job, _)| key == call.key && *job == counts(call).1)' \
        receivers::a_call_counts_once_when_the_answer_to_its_commit_is_lost
    mutant 'call of a deferred attempt' internal/store/attempts/limited.rs \
        'mark_counted(conn, &kept.collect::<Vec<_>>()).await?;' \
        'mark_counted(conn, &kept.take(0).collect::<Vec<_>>()).await?;' \
        receivers::the_call_of_a_deferred_attempt_counts_once_after_a_lost_answer
    mutant 'call of an attempt that is finished before its answer' internal/broker/deferred.rs \
        'call: Some(CallOutcome::Answered),' \
        'call: None::<CallOutcome>,' \
        receivers::a_call_that_is_finished_before_its_answer_counts_once_for_its_breaker
    mutant 'call that the deferral of its attempt has counted' internal/store/attempts/breakers.rs \
        'earlier == PriorRun::MayHaveCommitted || call.call.in_doubt' \
        'earlier == PriorRun::MayHaveCommitted' \
        receivers::a_call_that_is_finished_before_its_answer_counts_once_for_its_breaker
    mutant 'log of an attempt that was finished before its handler returned' internal/store/attempts/deferred.rs \
        'keep_log_of_ended(conn, (id, number), log.as_deref()).await?;' \
        'keep_log_of_ended(conn, (id, number), None).await?;' \
        deferred::an_attempt_that_was_finished_before_its_handler_returned_keeps_its_log_and_is_not_deferred
    mutant 'event of an attempt that was finished before its handler returned' internal/engine/executor.rs \
        'if deferred {' \
        'if deferred || claimed.number > 0 {' \
        deferred::an_attempt_that_was_finished_before_its_handler_returned_keeps_its_log_and_is_not_deferred
    mutant 'events beyond one read of a client that comes back' internal/broker/cluster_events.rs \
        '!is_last && self.pages_left == 0' \
        '!is_last && self.pages_left > MAX_PAGES' \
        events::a_client_that_missed_more_events_than_are_read_at_once_is_told_so
    mutant 'pages for a client that comes back' internal/broker/cluster_events.rs \
        'read_after(self.last, PAGE)' \
        'read_after(self.last, PAGE * MAX_PAGES)' \
        events::stored_events_stay_in_redis_until_a_client_has_taken_those_before_them
    mutant 'gap of events whose kinds cannot be read' internal/broker/cluster_events.rs \
        'if names.is_none() {' \
        'if names.is_none() && at == Timestamp::default() {' \
        events::events_whose_kinds_cannot_be_read_are_a_gap_for_a_client_with_a_filter
    mutant 'breaker that was set again' internal/store/rows/breakers.rs \
        'self.failed_at >= rule.since' 'self.failed_at > rule.since - TimeDelta::days(1)' \
        receivers::a_removed_breaker_or_limit_lets_its_jobs_go_and_is_forgotten
    mutant 'failures behind a clock that was set back' internal/store/rows/breakers.rs \
        'self.failed_at = Some(now.max(rule.since));' 'self.failed_at = Some(now);' \
        receivers::a_breaker_opens_also_after_the_clock_was_set_back
    mutant 'refusals that are about a call' internal/handlers/http/response.rs \
        '        let status = self.status;
        status.is_server_error() ||' \
'        let status = self.status;
        status.is_client_error() || status.is_server_error() ||' \
        receivers::refusals_that_are_about_a_call_open_no_breaker
    mutant 'actor that closes a breaker' internal/store/breakers.rs \
        'record(conn, &act, now).await?;
                let (gone, _)' \
'let _ = (record, now);
                let (gone, _)' \
        receivers::a_breaker_opens_after_its_failures_and_parked_jobs_burn_no_attempt
    mutant 'pages of several tables at a time' internal/engine/lib.rs \
        'Semaphore::new(broker.store().purges_at_once())' 'Semaphore::new(1 + broker.store().purges_at_once() / 100)' \
        janitor::the_removal_of_ended_jobs_holds_up_the_removal_from_no_other_table
    mutant 'connections that the janitor leaves to other loops' internal/store/sql/pools.rs \
        '(self.loops / 2).clamp(1, 3)' 'self.loops.clamp(1, 3)' \
        janitor::pages_of_the_janitor_that_wait_leave_connections_to_the_other_loops
    mutant 'hosts that fail in the janitor' internal/store/retention/forget.rs \
        '(failed_at IS NULL OR GREATEST(' '(TRUE OR GREATEST(' \
        janitor::the_janitor_empties_its_tables_and_another_carries_on
    mutant 'held jobs of a lane' internal/store/jobs/held.rs \
        'AND priority = ? AND execute_at = ? LIMIT ?' 'AND priority = ? AND execute_at + INTERVAL 0 SECOND = ? LIMIT ?' \
        bounds::counting_held_jobs_costs_the_same_behind_any_backlog
    mutant 'parked jobs behind a breaker' internal/store/jobs/held.rs \
        'if has_breakers {' 'if has_breakers && false {' \
        metrics::held_jobs_are_counted_by_queue_and_reason
    mutant 'count of a limit by key' internal/store/rows/limits.rs \
        'counted && self.running + self.kept < i64::from(most)' 'counted || self.running + self.kept < i64::from(most)' \
        key_limits::limits_hold_while_redis_is_flushed_and_runners_are_killed
    mutant 'rate of a limit by key' internal/store/rows/limits.rs \
        'is_none_or(|turn| turn <= self.now)' 'is_none_or(|turn| turn <= self.now + TimeDelta::days(1))' \
        key_limits::in_no_period_start_more_jobs_than_the_rate_and_its_burst
    mutant 'rate that was changed a moment ago' internal/store/attempts/limited.rs \
        'is_some_and(|state| !state.is_of(*bounds))' 'is_some_and(|state| !state.is_of(*bounds) && false)' \
        key_limits::no_job_starts_under_the_former_values_of_a_changed_rate
    mutant 'share of a key of a fair limit' internal/store/rows/limits.rs \
        'set.share.filter(|_| set.limit.fair)' 'set.share.filter(|_| false)' \
        key_limits::a_flood_of_one_key_does_not_delay_the_jobs_of_another \
        key_limits::keys_of_a_fair_limit_share_the_workers_by_their_weights
    mutant 'shares that are whole multiples of the weights' internal/store/rows/limits.rs \
        'u32::try_from(times.saturating_mul(weight)).unwrap_or(u32::MAX)' \
        'u32::try_from(((self.workers + (self.workers / 4).max(2)) * weight / self.weights.max(weight)).max(weight.min(times))).unwrap_or(u32::MAX)' \
        key_limits::keys_of_a_fair_limit_share_the_workers_by_their_weights
    mutant 'parts of workers that a key may not use' internal/store/rows/limits.rs \
        'if full.is_empty() || free.is_empty() {' 'if full.is_empty() || free.is_empty() || workers > 0 {' \
        key_limits::what_a_key_may_not_use_of_a_fair_limit_is_left_to_the_others
    mutant 'limits of a runner that was suspended' internal/store/rows/limits.rs \
        'asked.elapsed() >= OLD)' 'asked.elapsed() >= OLD * 1_000)' \
        key_limits::a_runner_that_was_suspended_when_a_limit_was_set_follows_it_at_once
    mutant 'lock of a key of a limit' internal/store/rows/limits.rs \
        'ORDER BY limit_name, limit_key FOR UPDATE' 'ORDER BY limit_name, limit_key' \
        key_limits::limits_hold_while_redis_is_flushed_and_runners_are_killed
    mutant 'attempts that ran before a limit' internal/store/attempts/limited.rs \
        'keys_of_jobs(conn, ids, new, ' 'keys_of_jobs(conn, ids, &new[..0], ' \
        key_limits::a_new_limit_counts_the_attempts_that_run
    mutant 'limit of a job that becomes due during its claim' internal/store/attempts/limited.rs \
        'if job.keys.is_empty() {' 'if job.keys.is_empty() || !row.try_get::<bool, _>("is_due")? {' \
        key_limits::a_job_that_becomes_due_while_it_is_claimed_counts_against_its_limit
    mutant 'sweep of limits by key' internal/engine/limits.rs \
        'if (!in_use && !uncounted) ||' 'if !uncounted ||' \
        key_limits::a_changed_or_removed_limit_holds_within_seconds
    mutant 'sweeps after a change of a limit during an outage' internal/engine/limits.rs \
        'if trouble && changed {' 'if trouble && changed && false {' \
        mysql_faults::a_limit_that_is_removed_during_an_outage_holds_no_job_up_after_it
    mutant 'parked jobs of paused queues' internal/store/rows/limits.rs \
        'const NOT_PAUSED: &str = "queue NOT IN (SELECT name FROM queues WHERE paused_at IS NOT NULL)";' \
        'const NOT_PAUSED: &str = "TRUE";' \
        key_limits::parked_jobs_of_a_paused_queue_keep_no_slot_from_others
    mutant 'parked jobs of paused queues in front of a line' internal/store/attempts/limited.rs \
        'behind_paused.extend(keys.behind_paused);' 'behind_paused.extend(keys.behind_paused.into_iter().take(0));' \
        key_limits::many_parked_jobs_of_a_paused_queue_leave_the_line_and_come_back_after_the_pause
    mutant 'stale slots behind those of a locked key' internal/store/attempts/limited.rs \
        'after = stale.last;' 'after = stale.last.filter(|_| false);' \
        key_limits::many_slots_of_a_locked_key_hide_no_slot_that_a_sweep_frees
    mutant 'stale slots behind thousands of others' internal/store/attempts/limited.rs \
        'None => end,' 'None => end.filter(|_| false),' \
        store::a_stale_slot_behind_thousands_of_others_is_freed_by_sweeps
    mutant 'key behind one with many parked jobs' internal/store/rows/limits.rs \
        'Ok(usize::try_from(rows).unwrap_or(0) >= KEYS_READ)' 'Ok(usize::try_from(rows).unwrap_or(0) > KEYS_READ)' \
        store::a_sweep_finds_the_key_behind_one_with_hundreds_of_parked_jobs
    mutant 'slots of attempts that still run' internal/store/rows/limits.rs \
        "WHERE state = 'executing' AND id IN {list}" "WHERE state = 'waiting' AND id IN {list}" \
        internal/store/attempts/limited.rs \
        "(o.id IS NULL OR o.state <> 'executing')" 'TRUE' \
        key_limits::a_slot_is_free_only_after_its_attempt_has_ended
    mutant 'slots that are free with the end of their attempts' internal/store/attempts/complete.rs \
        'let mut frees = successes.iter().any(|success| !success.opened.slots.is_empty());' \
        'let mut frees = successes.iter().any(|success| !success.opened.slots.is_empty()) && false;' \
        store::the_commit_that_ends_an_attempt_frees_its_slot_and_lets_the_next_parked_job_go
    mutant 'wait for a key of a limit at the end of an attempt' internal/store/attempts/limited.rs \
        'let got = lock_those_that_are_free(conn, &asked.into_iter().collect::<Vec<_>>()).await?;' \
        'let got = lock_within_a_second(conn, &asked.into_iter().collect::<Vec<_>>()).await?;' \
        store::the_end_of_an_attempt_waits_for_no_key_of_a_limit_that_another_session_locks
    mutant 'free keys before locked ones at the end of an attempt' internal/store/attempts/limited.rs \
        'let waits = self.waits || earlier == PriorRun::MayHaveCommitted;' \
        'let waits = self.waits || earlier == PriorRun::Nothing;' \
        store::the_slots_of_a_locked_key_delay_the_verdicts_of_no_other_key
    mutant 'wait for a key whose call may have counted' internal/store/attempts/limited.rs \
        'let waits = self.waits || earlier == PriorRun::MayHaveCommitted;' 'let waits = self.waits;' \
        store::a_lost_answer_to_the_end_of_a_call_counts_it_once_also_while_its_key_is_locked
    mutant 'parked jobs behind those that a settlement lets go' internal/store/attempts/limited.rs \
        'let jobs = if more {' 'let jobs = if more && false {' \
        store::an_end_at_a_limit_that_was_raised_lets_all_parked_jobs_go
    mutant 'call to a host in the end of a success' internal/store/attempts/limited.rs \
        'set.limit.fair || set.limit.breaker.is_some()' 'set.limit.fair' \
        receivers::a_breaker_opens_after_its_failures_and_parked_jobs_burn_no_attempt
    mutant 'kept slot of the next parked job' internal/store/attempts/limited.rs \
        'keys.retain(|id, key| kept_for.has(key, *id));' '' \
        store::a_parked_job_of_a_limit_that_was_removed_finds_out_whether_another_one_has_room
    mutant 'rate of the next parked job' internal/store/attempts/limited.rs \
        'KeyBounds::find(limits, &key).bounds.rate.is_some() ||' \
        '(KeyBounds::find(limits, &key).bounds.rate.is_some() && false) ||' \
        store::a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'turns of fair limits at the end of an attempt' internal/store/attempts/limited.rs \
        'set.limit.fair || set.limit.breaker.is_some()' 'set.limit.breaker.is_some()' \
        store::a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'slots of other keys at the end of an attempt' internal/store/rows/limits.rs \
        'let (any, values) = is_among(script, slots);' \
        'let (any, values) = is_among(script, slots); let any = any.replace("s.limit_name = ? AND s.limit_key = ?", "? IS NOT NULL AND ? IS NOT NULL");' \
        internal/store/rows/limits.rs \
        'DELETE s FROM limit_slots s FORCE INDEX (PRIMARY) WHERE' \
        'DELETE s FROM limit_slots s FORCE INDEX (limit_slots_job) WHERE' \
        store::the_end_of_an_attempt_waits_for_no_slot_that_another_session_makes \
        store::the_end_of_an_attempt_frees_no_slot_at_a_key_that_it_has_not_locked
    mutant 'slot of the next parked job' internal/store/attempts/limited.rs \
        '    insert_slots(&mut script, &slots, Some(token));' '' \
        store::the_next_parked_job_is_claimed_by_the_commit_that_ends_the_attempt_before_it
    mutant 'row in claim_batches for the next parked job' internal/store/attempts/limited.rs \
        '    claims.batch_step(&mut script, bytes, token, batch);' '' \
        store::the_next_parked_job_is_claimed_by_the_commit_that_ends_the_attempt_before_it
    mutant 'queue of the next parked job' internal/store/attempts/complete.rs \
        'fronts.get_mut(&job.queue).and_then(Vec::pop)' 'fronts.values_mut().find_map(Vec::pop)' \
        store::a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'other limits of the next parked job' internal/store/attempts/limited.rs \
        '|| keys.insert(id, key).is_some() {' '|| (keys.insert(id, key).is_some() && false) {' \
        store::a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'earlier attempts of the next parked job' internal/store/attempts/limited.rs \
        '" AND o.attempt = 0"' '""' \
        store::a_parked_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'slots that are kept, in a claim' internal/store/attempts/limited.rs \
        '&& states.values().any(|state| state.kept > 0) {' '&& states.values().any(|state| state.kept > 0) && false {' \
        store::the_commit_that_ends_an_attempt_frees_its_slot_and_lets_the_next_parked_job_go
    mutant 'limits after a COMMIT that took long' internal/store/attempts/claim.rs \
        'if !ours.is_empty() || limits.took_long() {' 'if !ours.is_empty() {' \
        store::a_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile \
        store::a_claim_whose_commit_took_long_follows_a_limit_that_was_lowered_meanwhile
    mutant 'limits of what an earlier run has claimed' internal/store/attempts/claim.rs \
        'if !ours.is_empty() || limits.took_long() {' 'if limits.took_long() {' \
        store::a_claim_that_finds_what_it_claimed_before_follows_a_limit_that_was_counted_meanwhile
    mutant 'claims of an earlier run that this one has no room for' internal/store/attempts/claim.rs \
        'self.open.gave_up(token, &left.collect::<Vec<_>>());' \
        'self.open.gave_up(token, &left.take(0).collect::<Vec<_>>());' \
        store::a_claim_without_room_gives_back_what_its_earlier_run_has_claimed_meanwhile
    mutant 'attempts without a slot after a COMMIT' internal/store/attempts/limited.rs \
        'found.without.values().flatten().copied().collect();' 'found.without.values().flatten().copied().take(0).collect();' \
        store::a_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile
    mutant 'slots beyond a limit that was lowered during a COMMIT' internal/store/attempts/limited.rs \
        'take(too_many.saturating_sub(leave))' 'take(too_many.saturating_sub(leave).min(0))' \
        store::a_claim_whose_commit_took_long_follows_a_limit_that_was_lowered_meanwhile
    mutant 'limits after the COMMIT that claims a next job' internal/store/attempts/complete.rs \
        'if limits.took_long() {' 'if limits.took_long() && false {' \
        store::a_next_parked_job_whose_commit_took_long_follows_a_limit_that_was_lowered_meanwhile
    mutant 'limits after the COMMIT that claims the next job of an order key' internal/store/attempts/complete.rs \
        '        if changed {' '        if changed && false {' \
        store::a_next_job_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile \
        store::a_next_job_whose_commit_took_long_follows_a_rate_that_was_set_meanwhile
    mutant 'remote claims that a limit has no room for' internal/store/attempts/remote.rs \
        'for mut left in open.take_unstarted() {' 'for mut left in open.take_unstarted().into_iter().take(0) {' \
        store::a_remote_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile
    mutant 'attempts without a slot in a repeated request' internal/store/attempts/remote.rs \
        'partition(|attempt| without_slots.contains(&attempt.id))' \
        'partition(|attempt| without_slots.contains(&attempt.id) && false)' \
        store::a_remote_claim_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile
    mutant 'suspect that a limit has no room for' internal/engine/solo.rs \
        'reaper::give_back_unanswered(&shared).await' 'Ok::<(), StoreError>(())' \
        key_limits::a_suspect_whose_commit_took_long_follows_a_limit_that_was_counted_meanwhile
    mutant 'attempts that a run without an answer has left' internal/store/attempts/claim.rs \
        'claims.extend(self.why_lost(conn, &lost, &sure).await?);' \
        'self.leave_without_room(conn, &mut claims.clone(), None, token).await?; claims.extend(self.why_lost(conn, &lost, &sure).await?);' \
        store::a_claim_that_runs_again_has_left_nothing_before
    mutant 'row of a claim of which a part is given back' internal/store/attempts/claim.rs \
        'self.open.won_in_part(token, &found)' 'self.open.won(batch, token, &found)' \
        store::the_row_of_a_claim_stays_until_what_had_no_room_is_given_back
    mutant 'row of a claim of next jobs of which a part is given back' internal/store/attempts/complete.rs \
        'self.claims.open.won_in_part(self.token, &won);' 'self.claims.open.won(self.batch, self.token, &won);' \
        store::the_row_of_a_claim_of_next_jobs_stays_until_what_had_no_room_is_given_back
    mutant 'host that changes while its job is claimed' internal/store/rows/limits.rs \
        'is_some_and(|counted_by| *counted_by != host)' 'is_some_and(|counted_by| *counted_by != host && false)' \
        store::a_claim_counts_a_job_by_its_new_host_if_its_payload_is_changed_meanwhile
    mutant 'due times of parked jobs' internal/store/rows/limits.rs \
        'ORDER BY due_at, job_id LIMIT ?)"' 'ORDER BY due_at DESC, job_id DESC LIMIT ?)"' \
        key_limits::parked_jobs_start_in_the_order_in_which_they_were_due
    mutant 'place in the lines of two limits' internal/store/rows/limits.rs \
        'due_at.is_some_and(|due_at| due_at <= first)' 'due_at.is_some_and(|due_at| due_at < first && false)' \
        key_limits::a_job_under_two_limits_keeps_its_place_in_the_lines_of_both
    mutant 'slots of a wide limit behind a narrow one' internal/store/attempts/limited.rs \
        'of_refusal.is_narrower_than(bounds) &&' 'of_refusal.is_narrower_than(of_refusal) &&' \
        key_limits::a_key_without_room_leaves_the_slots_of_a_shared_limit_to_the_keys_behind_it
    mutant 'due time that was put off' internal/store/rows/limits.rs \
        'WHERE s.kept_until = o.execute_at + INTERVAL {} SECOND' 'WHERE s.kept_until > UTC_TIMESTAMP(6) + INTERVAL {} SECOND' \
        internal/store/rows/limits.rs '(o.id IS NULL OR s.kept_until < o.execute_at' '(FALSE AND s.kept_until < o.execute_at' \
        internal/store/rows/limits.rs 'AND h.attempt = o.attempt + 1 SET h.due_at = ?' 'AND h.attempt = o.attempt + 1 SET h.due_at = COALESCE(h.due_at, ?)' \
        key_limits::a_job_whose_due_time_a_client_puts_off_does_not_start_with_a_faster_rate
    mutant 'slots that are kept in vain' internal/store/rows/limits.rs \
        '(o.id IS NULL OR s.kept_until < o.execute_at' '(FALSE AND s.kept_until < o.execute_at' \
        key_limits::the_turn_of_a_job_that_is_cancelled_or_put_off_goes_to_the_next_one
    mutant 'due time of a parked job' internal/store/jobs/read.rs \
        'Some(parked) if is_parked(parked) =>' 'Some(parked) if is_parked(parked) && false =>' \
        key_limits::a_parked_job_that_was_made_due_shows_that_due_time
    mutant 'due times of jobs that wait for a turn in a filter' internal/store/jobs/conditions.rs \
        "CASE WHEN o.execute_at < '9999-12-30' THEN" "CASE WHEN o.execute_at < '9999-12-31 13:00:00' THEN" \
        operations::a_due_time_selects_jobs_that_wait_for_a_turn_by_the_one_that_they_show
    mutant 'due time of a parked head of an order key' internal/store/jobs/order_keys.rs \
        'ELSE {DUE_OF_OWED} END AS since' 'ELSE o.execute_at END AS since' \
        key_limits::a_job_with_an_order_key_and_a_limit_key_follows_both
    mutant 'due time of a parked holder of a unique key' internal/store/jobs/key_holders.rs \
        'COALESCE(q.due_at, j.execute_at)' 'j.execute_at' \
        key_limits::a_parked_job_that_was_made_due_shows_that_due_time
    mutant 'due time of a job that is parked again' internal/store/rows/limits.rs \
        'AND h.attempt = o.attempt + 1), UTC_TIMESTAMP(3))' \
        'AND h.attempt = o.attempt), (SELECT j.execute_at FROM jobs j WHERE j.id = o.id))' \
        key_limits::a_delayed_job_that_was_made_due_starts_when_its_limit_is_removed
    mutant 'due time of a job that was put off before its turn' internal/store/jobs/change.rs \
        'if request.change.due.is_some() {' 'if request.change.due.is_some() && false {' \
        internal/store/bulk.rs 'Some(due) if !changed.is_empty() =>' 'Some(due) if !changed.is_empty() && false =>' \
        key_limits::a_job_that_is_put_off_before_its_turn_is_parked_with_its_new_due_time
    mutant 'parked jobs that a limit does not cover' internal/store/attempts/limited.rs \
        'if set.limit.key_of(&kind, &queue, by) != Some(key.key.as_str()) {' \
        'if set.limit.key_of(&kind, &queue, by) != Some(key.key.as_str()) && false {' \
        key_limits::jobs_that_a_changed_limit_does_not_cover_any_more_go_on
    mutant 'count for a limit behind a clock that was set back' internal/store/rows/limits.rs \
        'since.elapsed() >= time)' 'since.elapsed() >= time && set.changed.0 < chrono::Utc::now())' \
        key_limits::a_clock_that_is_set_back_after_a_limit_was_set_holds_no_job_up
    mutant 'first version of a limit' internal/store/limits.rs \
        'rand::random_range(1..=MAX_FIRST_VERSION)' 'MAX_FIRST_VERSION.min(1)' \
        key_limits::the_version_of_a_removed_limit_changes_none_that_has_its_name
    mutant 'limit that another transaction made' internal/store/limits.rs \
        'write(conn, "INSERT", set)' 'write(conn, "REPLACE", set)' \
        api::of_many_calls_that_may_only_make_a_limit_or_a_kind_one_makes_it
    mutant 'declaration that another transaction made' internal/store/kinds.rs \
        'write(conn, "INSERT", set)' 'write(conn, "REPLACE", set)' \
        api::of_many_calls_that_may_only_make_a_limit_or_a_kind_one_makes_it
    mutant 'key of a limit that another session is making' internal/store/rows/limits.rs \
        'const NOWAIT: &str = " NOWAIT";' 'const NOWAIT: &str = SKIP_LOCKED;' \
        key_limits::a_key_that_another_session_is_making_holds_up_the_jobs_of_no_other_key
    mutant 'jobs of locked keys without Redis' internal/engine/fetcher.rs \
        'if self.shared.store.knows_locked_keys() {' 'if self.shared.store.knows_locked_keys() && false {' \
        key_limits::without_redis_the_jobs_of_a_locked_key_hold_up_no_job_behind_them
    mutant 'claim of a next job that comes late' internal/store/attempts/claim_batches.rs \
        'Self::Possible => Some(Self::NotFoundAt(Instant::now())),' 'Self::Possible => None,' \
        order::a_next_job_is_given_back_also_if_mysql_claims_it_after_a_look_in_vain
    mutant 'turns of keys without Redis' internal/engine/fetcher.rs \
        'let_go.get(id).or_else(|| due.get(id)).copied()' 'due.get(id).copied()' \
        key_limits::on_many_workers_without_redis_the_jobs_on_their_way_alone_start_before_another_key
    mutant 'jobs of a flood without Redis' internal/engine/fetcher.rs \
        'self.shared.store.park_behind_others(flood).await' 'self.shared.store.park_behind_others(&[]).await' \
        key_limits::without_redis_the_jobs_of_a_flood_that_are_not_parked_yet_are_parked_together
    mutant 'jobs on their way beside a flood' internal/store/attempts/limited.rs \
        'if !with_slots.contains(&id) {' 'if !with_slots.contains(&Uuid::nil()) {' \
        key_limits::only_jobs_behind_parked_ones_of_their_key_are_parked_without_a_claim
    mutant 'keys without parked jobs beside a flood' internal/store/attempts/limited.rs \
        'filter(|(key, _)| with_parked_jobs.contains(key))' 'filter(|_| !with_parked_jobs.is_empty())' \
        key_limits::only_jobs_behind_parked_ones_of_their_key_are_parked_without_a_claim
    mutant 'slots that a breaker keeps' internal/store/attempts/limited.rs \
        'let reads_kept = counted.len() < sorted.len();' 'let reads_kept = counted.len() > sorted.len();' \
        receivers::after_a_breaker_has_closed_jobs_start_before_those_that_are_still_parked
    mutant 'keys behind one with many jobs' internal/store/rows/limits.rs \
        '|| keys.len() >= most' '|| !keys.is_empty()' \
        store::the_check_and_the_list_of_keys_find_those_behind_one_with_hundreds_of_jobs
    mutant 'check of keys behind one with many jobs' internal/store/verify/limits.rs \
        'if may_have_more { Walk::From(keys.last().cloned()) }' 'if may_have_more && keys.is_empty() { Walk::From(None) }' \
        store::the_check_and_the_list_of_keys_find_those_behind_one_with_hundreds_of_jobs
    mutant 'lock of an order key' internal/store/rows/jobs.rs \
        '    lock_or_make(conn, &newcomers.iter().map(|new| new.key).collect()).await?;' '' \
        order::no_job_is_left_behind_when_jobs_are_accepted_while_those_in_front_end
    mutant 'next in line' internal/store/attempts/settle.rs \
        'filter(|step| ordered.closes(step.item.id, step.state))' 'filter(|_| false)' \
        order::a_job_that_fails_for_good_blocks_its_key_until_it_is_dealt_with_or_skips
    mutant 'next in line after a success' internal/store/attempts/complete.rs \
        'if !successors.is_empty() {' 'if false {' \
        order::jobs_of_batches_and_of_single_requests_keep_their_order
    mutant 'next place of an order key' internal/store/rows/order.rs \
        'p.place = k.head + 1 AND p.open' 'p.place + 0 = k.head + 1 AND p.open' \
        bounds::the_next_job_of_a_key_is_found_without_reading_its_history
    mutant 'next in line after a cancel' internal/store/jobs/actions.rs \
        'if ordered.contains(id) {' 'if ordered.contains(id) && false {' \
        order::a_cancel_lets_the_next_job_go_and_a_later_retry_goes_to_the_tail
    mutant 'a failed job blocks' internal/store/rows/order.rs \
        'is_some_and(|ordered| end != State::Failed || !ordered.blocks)' 'is_some()' \
        order::a_job_that_fails_for_good_blocks_its_key_until_it_is_dealt_with_or_skips
    mutant 'hint of the job behind a deleted one' internal/broker/lib.rs \
        'batched.released.iter().for_each(|job| self.hint_released(job));' '' \
        order::a_job_that_fails_for_good_blocks_its_key_until_it_is_dealt_with_or_skips
    mutant 'jobs that a removal lets go' internal/store/retention/remove.rs \
        'removed.released.extend(close_places(conn, &open.collect::<Vec<_>>(), now).await?);' \
        'close_places(conn, &open.collect::<Vec<_>>(), now).await?;' \
        order::a_job_that_fails_for_good_blocks_its_key_until_it_is_dealt_with_or_skips
    mutant 'end of a job behind its last number' internal/store/rows/ledger.rs \
        '.bind(line.number.min(MAX_NUMBER))' '.bind(line.number)' \
        remote_workers::a_job_at_the_last_number_of_an_attempt_keeps_no_other_job_from_its_worker
    mutant 'no early start of a held job' internal/store/jobs/actions.rs \
        'StateInput::RunNow if waits_for_turn(owed.execute_at)' 'StateInput::RunNow if false' \
        order::a_job_that_is_held_is_not_made_due_and_costs_redis_nothing
    mutant 'due time at the head' internal/store/rows/order.rs \
        'GREATEST(p.due_at, ?)' 'LEAST(p.due_at, ?)' \
        order::a_due_time_holds_when_a_job_is_at_the_head_and_the_jobs_behind_wait_for_it
    mutant 'due time at the head after a success' internal/store/rows/order.rs \
        'due_at.max(floor_ms(moment))' 'due_at.min(floor_ms(moment))' \
        order::a_due_time_holds_when_a_job_is_at_the_head_and_the_jobs_behind_wait_for_it
    mutant 'end of a turn of an order key' internal/engine/executor.rs \
        'MAX_TURN: Duration = Duration::from_millis(20)' 'MAX_TURN: Duration = Duration::from_secs(3600)' \
        order::an_urgent_job_does_not_wait_until_a_key_has_no_more_jobs
    mutant 'permits of a limited queue for all' internal/engine/released.rs \
        'shared.permits.are_scarce(queue) || ' '' \
        internal/engine/executor.rs \
        ' || !lasts && self.permit.is_scarce()' '' \
        order::an_urgent_job_of_a_limited_queue_does_not_wait_until_a_key_has_no_more_jobs
    mutant 'row in claim_batches for the next job of a key' internal/store/attempts/complete.rs \
        '        self.claims.batch_step(script, &self.bytes, self.token, self.batch);
' '' \
        store::the_next_job_of_an_order_key_is_claimed_by_the_commit_that_ends_the_one_in_front
    mutant 'queue of the next job of a key' internal/store/attempts/complete.rs \
        'front.opened.queue == job.queue && ' '' \
        store::a_next_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'limits of the next job of a key' internal/store/attempts/complete.rs \
        ' && !claims.limits.concern(Some(&job.queue))' '' \
        store::a_next_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'due time of a next job that is not claimed after all' internal/store/attempts/complete.rs \
        'due_steps(&mut write, &successors);' '' \
        store::a_next_job_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'unanswered claim of the next job of a key' internal/store/attempts/complete.rs \
        'self.claims.open.gave_up(self.token, &ids);' 'let _ = ids;' \
        store::a_next_job_whose_claim_was_not_answered_is_given_back_and_uses_no_attempt
    mutant 'jobs behind the next job of a key' internal/store/attempts/complete.rs \
        'claimed.behind = std::mem::take(&mut self.behind);' \
        'claimed.behind = std::mem::take(&mut self.behind)[..0].to_vec();' \
        order::the_jobs_of_a_key_follow_each_other_with_one_request_each
    mutant 'row in claim_batches for a job that follows in one request' internal/store/attempts/claim.rs \
        'self.list_step(script, (id, &if_changed(1)), token, batch);' \
        'self.list_step(script, (&[0; 16], &if_changed(1)), token, batch);' \
        order::the_jobs_of_a_key_follow_each_other_with_one_request_each
    mutant 'head of a key in one request' internal/store/rows/order.rs \
        'WHERE order_key = ? AND head + 1 = ?' \
        'WHERE order_key = ? AND head + ? > 0' \
        order::an_end_in_one_request_writes_nothing_unless_token_cancel_and_head_are_as_they_were
    mutant 'ends behind the head of a key in one request' internal/store/attempts/complete.rs \
        '" AND ROW_COUNT() = 1"' \
        '""' \
        order::an_end_in_one_request_writes_nothing_unless_token_cancel_and_head_are_as_they_were
    mutant 'ends that are all there in one request' internal/store/attempts/complete.rs \
        '&if_changed(self.ids.len())' \
        '"?"' \
        order::an_end_in_one_request_writes_nothing_unless_token_cancel_and_head_are_as_they_were
    mutant 'claim that was made in one request' internal/store/attempts/claim.rs \
        '(id, &if_changed(1))' \
        '(id, "?")' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'place of a job that follows in one request' internal/store/rows/order.rs \
        'AND p.place = ? AND p.open AND p.due_at' \
        'AND p.place + ? > 0 AND p.due_at' \
        order::a_job_that_has_left_its_place_behind_the_one_that_runs_does_not_start_there
    mutant 'due time of a job that follows in one request' internal/store/rows/order.rs \
        ' AND p.due_at <= UTC_TIMESTAMP(3)' \
        '' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'queue of a job that follows in one request' internal/store/attempts/claim.rs \
        'AND queue = ? AND {IS_IN_PLACE}' \
        'AND queue <> CONCAT(?, 1) AND {IS_IN_PLACE}' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'last attempt of a job that follows in one request' internal/store/attempts/claim.rs \
        '&is_next, &not_last]' \
        '&is_next, &not_last[..0]]' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'limits of a job that follows in one request' internal/store/attempts/complete.rs \
        '(!claims.limits.concern(Some(&front.opened.queue))).then_some' \
        '(!claims.limits.concern(Some(&front.opened.queue)) || true).then_some' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'claim that a guard has stopped' internal/store/attempts/complete.rs \
        '                claim.forget();
                sqlx::raw_sql("ROLLBACK")' \
        '                sqlx::raw_sql("ROLLBACK")' \
        order::a_job_behind_the_one_that_runs_that_may_not_follow_at_once_is_let_go_and_not_claimed
    mutant 'tallies behind the job that follows in one request' internal/store/attempts/complete.rs \
        '        claim.add_guarded_steps(&mut script,' \
        '        counts.add_step(&mut script); claim.add_guarded_steps(&mut script,' \
        order::an_end_in_one_request_that_waits_for_the_next_job_locks_no_tally
    mutant 'locked order keys apart' internal/store/jobs/insert.rs \
        'let key = item.iter().find_map(order_key_of)?;' 'let key = item.iter().find_map(order_key_of).filter(|_| false)?;' \
        order::a_key_whose_row_is_locked_delays_the_jobs_of_no_other_key
    mutant 'next in line after the last loss' internal/store/attempts/lease.rs \
        'let (ordered, locked) = lock_free_keys_of(conn, &uuids).await?;' 'let (ordered, locked) = lock_free_keys_of(conn, &uuids[..0]).await?;' \
        order::a_job_that_killed_its_runners_to_the_end_lets_the_next_one_go_if_it_skips
    mutant 'limit of a silent transaction' internal/store/sql/connection.rs \
        ', idle_transaction_timeout = 15' ', idle_write_transaction_timeout = 15' \
        leases::a_claim_that_took_no_job_when_its_runner_froze_locks_none_for_long
    mutant 'rows that a silent runner locks' internal/store/attempts/lease.rs \
        'let mut held = lock_free(conn,' 'let mut held = lock_held(conn,' \
        leases::a_row_that_a_silent_runner_locks_delays_no_other_of_its_lost_attempts
    mutant 'idle connections of a receiver' internal/handlers/http/mod.rs \
        '.pool_max_idle_per_host(idle)' '.pool_max_idle_per_host(idle.min(4))' \
        callbacks::callbacks_to_one_receiver_use_its_connections_again
    mutant 'idle connections of a receiver for every worker' internal/handlers/http/clients.rs \
        'workers.clamp(1, MAX_IDLE_OF_MANY / 8)' 'workers.clamp(1, MAX_IDLE_OF_MANY / 16)' \
        callbacks::six_hundred_workers_use_their_connections_to_one_receiver_again
    mutant 'HTTP/2 of callbacks' internal/handlers/http/mod.rs \
        'vec![b"h2".to_vec(), b"http/1.1".to_vec()]' 'vec![b"http/1.1".to_vec()]' \
        callbacks::callbacks_share_one_connection_to_a_receiver_that_speaks_http_2
    mutant 'cloud metadata behind the wide switch' internal/handlers/http/guard.rs \
        'if is_metadata(address) {' 'if is_metadata(address) && !self.wide {' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'cloud metadata over IPv6' internal/handlers/http/guard.rs \
        '|address: IpAddr| METADATA.contains(&address) ||' '|address: IpAddr| METADATA[..4].contains(&address) ||' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'first failure over retries' internal/store/rows/dead_letters.rs \
        'dead_letters.iter().filter(|dead_letter| dead_letter.lived_before)' 'dead_letters.iter().filter(|dead_letter| dead_letter.lived_before).take(0)' \
        callbacks::a_group_is_as_old_as_its_first_failure_though_its_jobs_are_retried_in_vain
    mutant 'prefixes of NAT64 within the one for local use' internal/handlers/http/guard.rs \
        '[0x64, 0xff9b, 1, ..] => &NAT64_PLACES,' '[0x64, 0xff9b, 1, ..] => &NAT64_PLACES[3..],' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'words of headers that are secrets' internal/handlers/http/sent_back.rs \
        'if values.len() > MAX_VALUES &&' 'if values.len() > 100 * MAX_VALUES &&' \
        callbacks::the_answer_to_hundreds_of_secret_words_is_hidden_and_a_repeated_word_counts_once
    mutant 'secret words that headers repeat' internal/handlers/http/mod.rs \
        'let secrets: BTreeSet<&str> = ours' 'let secrets: Vec<&str> = ours' \
        callbacks::the_answer_to_hundreds_of_secret_words_is_hidden_and_a_repeated_word_counts_once
    mutant 'time limit of the runner that accepted a callback' internal/handlers/http/mod.rs \
        'check::problems(&callback, &self.rule, Duration::MAX)' 'check::problems(&callback, &self.rule, self.longest)' \
        callbacks::a_callback_that_was_accepted_with_a_longer_time_limit_is_made_within_that_of_its_runner
    mutant 'sign of a small number' internal/store/reports/query.rs \
        '"BOOLEAN" if <u64 as Type<MySql>>::compatible(info) => return (ColumnKind::Bool, Wire::Unsigned),' '' \
        report::every_column_type_arrives_exactly
    mutant 'time of a date that no calendar has' internal/store/reports/query.rs \
        'let [hour, minute, second, micros @ ..] = time else' 'let [hour, minute, second, micros @ ..] = &time[..0] else' \
        report::every_column_type_arrives_exactly
    mutant 'query of the runner that accepted a report' internal/handlers/report/mod.rs \
        'Failure::other_settings(format!("prepare report' 'Failure::reject(format!("prepare report' \
        kinds::a_report_of_a_query_that_its_runner_does_not_have_is_given_back_and_made_later
    mutant 'follow-up jobs of an attempt that another system finishes' internal/handlers/outcome.rs \
        'if self.later.is_some() {' 'if self.later.is_some() && self.result.is_some() {' \
        deferred::a_handler_that_leaves_its_attempt_to_another_system_cannot_add_follow_up_jobs
    mutant 'limit of follow-up jobs' internal/handlers/outcome.rs \
        'if self.follow_ups.len() >= most {' 'if self.follow_ups.len() >= 10 * most {' \
        follow_ups::at_most_a_thousand_jobs_follow_one_and_all_are_checked_before_any_is_written
    mutant 'size of a follow-up job' internal/broker/draft.rs \
        'if let Some(detail) = limits::problem_of_payload(self.payload.get()) {' \
        'if let Some(detail) = limits::problem_of_payload(self.payload.get()).filter(|_| self.kind.is_empty()) {' \
        follow_ups::a_follow_up_job_that_is_too_large_rejects_its_parent_and_none_is_written
    mutant 'size of all follow-up jobs' internal/handlers/outcome.rs \
        'if bytes > most {' 'if bytes > 10 * most {' \
        follow_ups::a_follow_up_job_that_is_too_large_rejects_its_parent_and_none_is_written
    mutant 'token behind the row of a report' internal/store/reports/files.rs \
        'fetch_optional(&mut *conn).await?.is_none()' 'fetch_optional(&mut *conn).await?.is_some_and(|_| false)' \
        shared_reports::only_the_holder_of_a_job_replaces_its_report_and_only_by_a_whole_one
    mutant 'token behind the removal of the parts of a report' internal/store/reports/files.rs \
        'Ok(holds.map(|_| left))' 'Ok(Some(left).filter(|_| holds.is_none_or(|_| true)))' \
        shared_reports::only_the_holder_of_a_job_replaces_its_report_and_only_by_a_whole_one
    mutant 'parts of a report counted before its row' internal/store/reports/files.rs \
        'if !is_whole(conn, &record).await? {' 'if false && !is_whole(conn, &record).await? {' \
        shared_reports::only_the_holder_of_a_job_replaces_its_report_and_only_by_a_whole_one
    mutant 'size of the parts of a report' internal/store/reports/files.rs \
        'self.shared.options.server.statement_bytes().min(MAX_PART_BYTES)' \
        'self.shared.options.server.statement_bytes().max(MAX_PART_BYTES)' \
        shared_reports::parts_fit_a_server_that_takes_small_packets
    mutant 'parts of earlier attempts' internal/handlers/report/finished.rs \
        'let _ = self.reports.begin(job, token).await;' '' \
        shared_reports::another_attempt_replaces_a_report_and_a_half_written_one_is_never_served
    mutant 'digest of a report' internal/handlers/report/finished.rs \
        'if number + 1 == parts && expected' 'if number == parts && expected' \
        shared_reports::another_attempt_replaces_a_report_and_a_half_written_one_is_never_served
    mutant 'runner that made a file' internal/handlers/report/finished.rs \
        '(is_mine || record.parts == 0)' '(is_mine || record.bytes > 0)' \
        shared_reports::every_runner_serves_and_mails_a_report_also_when_the_one_that_made_it_is_gone
    mutant 'patience with a MySQL that is out' internal/handlers/report/finished.rs \
        'tokio::time::sleep(pause).await;' 'return Err(Failure::retry(cause));' \
        shared_reports::a_report_waits_for_mysql_and_what_mysql_refuses_stays_with_its_runner
    mutant 'folder while MySQL cannot be asked' internal/handlers/report/finished.rs \
        'Err(error) => return here?.map(Found::Here).ok_or(FindError::Unavailable(error.to_string())),' \
        'Err(error) => return Err(FindError::Unavailable(error.to_string())),' \
        shared_reports::a_report_waits_for_mysql_and_what_mysql_refuses_stays_with_its_runner
    mutant 'names of reports in a sweep' internal/handlers/report/file.rs \
        'None => ReportName::parse(name).map(|_| keep)?,' 'None => keep,' \
        shared_reports::reports_end_with_their_age_on_disk_and_in_mysql_and_foreign_files_stay
    mutant 'samples of a page that is not read' internal/engine/recorder.rs \
        'tickr_telemetry::count_samples();' '' \
        metrics::samples_take_no_memory_of_a_runner_whose_page_is_not_read
    mutant 'message of a panic in a check' internal/telemetry/logs.rs \
        'DISCREET.replace(true)' 'DISCREET.replace(false)' \
        panics::a_check_that_panics_writes_nothing_of_the_payload_into_the_log
    mutant 'mail of a report without the kind email' internal/app/kinds.rs \
        'let mails = registry.get(Email::NAME).is_some_and(can_mail);' \
        'let mails = registry.get(Email::NAME).is_none_or(|_| true);' \
        kinds::a_report_whose_mail_cannot_be_sent_is_refused_before_its_query_runs
    mutant 'sender of the mail of a report' internal/app/kinds.rs \
        'is_some_and(can_mail)' 'is_some_and(|kind| can_mail(kind) || config.smtp.is_some())' \
        kinds::a_report_whose_mail_cannot_be_sent_is_refused_before_its_query_runs
    mutant 'parts behind the first page of them' internal/store/reports/files.rs \
        'last.filter(|_| parts == PARTS_READ)' 'last.filter(|_| parts > PARTS_READ)' \
        shared_reports::the_parts_of_a_report_that_is_being_copied_outlast_a_short_retention
    mutant 'attempt that holds the parts of a report' internal/store/reports/files.rs \
        'FROM owed o FORCE INDEX (PRIMARY) WHERE o.id' \
        'FROM owed o FORCE INDEX (PRIMARY) WHERE o.id IS NULL AND o.id' \
        shared_reports::the_parts_of_a_report_that_is_being_copied_outlast_a_short_retention
    mutant 'differences beyond the limit of a check' internal/verify/drift.rs \
        '} else if suspects.len() >= MAX_SUSPECTS {' '} else if suspects.len() >= 10 * MAX_SUSPECTS {' \
        verify::a_check_that_stops_at_too_many_differences_says_that_it_did_not_see_all
    mutant 'lost data beside an outage' internal/index/health.rs \
        'if to == Health::Degraded || condition.health != Health::Degraded {' 'if condition.troubles > 0 {' \
        index_partitions::a_partition_that_lost_its_data_while_another_is_out_does_not_end_the_outage
    mutant 'deletion of the index that failed' internal/engine/reconciler.rs \
        'inspect_err(|_| shared.index.health().could_not_empty())' 'inspect_err(|_| ())' \
        redis_access::a_rebuild_from_nothing_whose_deletion_fails_deletes_later
    mutant 'mark of a report whose job was deleted' internal/store/retention/remove.rs \
        'hide_reports(conn, &reports, now).await?;' '' \
        shared_reports::a_report_goes_with_its_job_when_an_operator_deletes_it
    mutant 'places of downloads' internal/api/reports.rs \
        'let place = api.downloads.take(sharing.0);' 'let place = super::RequestPermits::new(99).take(sharing.0);' \
        shared_reports::downloads_from_mysql_are_bounded_and_ask_for_the_same_keys_as_others
    mutant 'bound of a count' internal/store/jobs/backlog.rs \
        'const MAX_COUNTED: usize = 100_000;' \
        'const MAX_COUNTED: usize = 100_000_000;' \
        bounds::counting_jobs_costs_the_same_behind_any_backlog_and_says_what_is_a_floor
    mutant 'floors of a count' internal/store/jobs/backlog.rs \
        'exact: cut.is_empty() && !others' \
        'exact: cut.len() < 1_000' \
        bounds::counting_jobs_costs_the_same_behind_any_backlog_and_says_what_is_a_floor
    mutant 'claims instead of a walk' internal/store/verify/startable.rs \
        'match self.claimed().await? {' \
        'match self.claimed().await?.filter(|_| false) {' \
        bounds::what_could_be_started_is_known_without_a_walk_through_what_waits
    mutant 'one look for many probes' internal/api/system/readiness.rs \
        'came.elapsed() < FRESH)' \
        'came.elapsed() < FRESH / 500)' \
        starvation::a_flood_of_probes_shares_its_looks_at_mysql_and_none_is_told_ready_after_mysql_went
    mutant 'age of a look' internal/api/system/readiness.rs \
        'FRESH: Duration = Duration::from_millis(500)' \
        'FRESH: Duration = Duration::from_secs(3)' \
        starvation::a_flood_of_probes_shares_its_looks_at_mysql_and_none_is_told_ready_after_mysql_went
    mutant 'watch before the first judgement' internal/engine/heartbeat_history.rs \
        'self.began.is_some_and(|began| is_gap(since(began), by))' \
        'self.began.is_some()' \
        clocks::a_runner_that_starts_after_a_step_of_the_clock_of_mysql_judges_no_other_by_it
    mutant 'lease of the one that is judged' internal/engine/heartbeat_history.rs \
        'let longer = lease.max(theirs);' \
        'let longer = lease.min(theirs);' \
        clocks::a_runner_that_starts_after_a_step_of_the_clock_of_mysql_judges_no_other_by_it
    mutant 'shorter lease of the one that is judged' internal/engine/reaper.rs \
        'if beat.is_remote { lease } else { beat.lease.min(lease) }' \
        'if beat.is_remote { lease } else { beat.lease.max(lease) }' \
        leases::the_jobs_of_a_killed_runner_wait_for_its_lease_and_not_for_a_longer_one
    mutant 'steps of the clock in a check' internal/verify/life.rs \
        'self.steps.iter().any(' \
        'self.steps.iter().take(0).any(' \
        clocks::a_runner_that_starts_after_a_step_of_the_clock_of_mysql_judges_no_other_by_it
    mutant 'first failure over replays' internal/store/rows/dead_letters.rs \
        'let first = original_of.get(&dead_letter.id)' \
        'let first = original_of.get(&dead_letter.id).filter(|_| false)' \
        dead_letters::a_group_was_first_seen_when_it_was_first_seen_however_often_its_jobs_were_replayed
    mutant 'dead letters that cannot be read, apart from the others' internal/store/dead_letters.rs \
        'refused.insert(id, Refusal::Unreadable(why));' \
        'return Err(corrupt(why));' \
        dead_letters::a_dead_letter_that_cannot_be_read_is_refused_by_name_and_holds_up_no_other
    mutant 'an end without its outcome' internal/engine/executor.rs \
        'Err(error) if error.is_about_the_row() && !bare => {' \
        'Err(error) if error.is_about_the_row() && bare => {' \
        engine::an_attempt_whose_result_mysql_refuses_is_not_lost_and_not_repeated
    mutant 'secrets of single hosts' internal/handlers/http/secrets.rs \
        '.map_or(&self.usual, |(_, secrets)| secrets)' '.filter(|_| false).map_or(&self.usual, |(_, secrets)| secrets)' \
        kinds::each_receiver_gets_signatures_by_its_own_secrets_alone
    mutant 'processes for suspects under `tickr dev`' cmd/tickr/dev.rs \
        'Registry::new(), Some(child))' 'Registry::new(), Some(child).filter(|_| false))' \
        blackbox::under_dev_a_job_that_aborts_its_process_twice_runs_in_a_child_and_fails_and_dev_lives_on
    mutant 'defaults of a program in what it hands on' internal/config/load.rs \
        'Sources::new(flags, env, file, defaults)' 'Sources::new(flags, env, file, "")' \
        blackbox::under_dev_a_job_that_aborts_its_process_twice_runs_in_a_child_and_fails_and_dev_lives_on
    mutant 'losses of what was given back unread' internal/store/attempts/settle.rs \
        'Verdict::Snoozed if matches!(item.again, Again::ForAnother(_)) => owed.losses,' '' \
        store::a_job_fails_after_three_losses_in_a_row_and_a_verdict_of_its_own_clears_them
    mutant 'word of a process that could not read its suspect' internal/engine/child.rs \
        'shared.unread.leave_to_others(job.id, given_back, queue.clone(), job.priority)' 'drop(given_back)' \
        rollout::suspects_run_in_processes_of_a_version_that_can_read_them
    mutant 'handover of a permit' internal/engine/permits.rs \
        'let yielding = others_want && turn.yields_now(granted > 0);' \
        'let yielding = others_want && turn.yields_now(granted > 0) && used > 1_000_000;' \
        queues::a_limit_below_the_number_of_runners_reaches_each_of_them_under_load
    mutant 'time between two handovers of a permit' internal/engine/permits.rs \
        'YIELD_EVERY: Duration = Duration::from_secs(10)' \
        'YIELD_EVERY: Duration = Duration::from_millis(500)' \
        queues::a_limit_below_the_number_of_runners_is_not_handed_over_after_every_job
    mutant 'bound of open dead letters' internal/store/jobs/stats.rs \
        'MAX_OPEN: u32 = 100_000' \
        'MAX_OPEN: u32 = 100_000_000' \
        bounds::counting_costs_the_same_behind_any_number_of_queues_and_open_dead_letters
    mutant 'bound of the open dead letters of a queue' internal/api/queues.rs \
        'open_dead_letters_exact: counts.open_dead_letters_exact' 'open_dead_letters_exact: true' \
        bounds::counting_costs_the_same_behind_any_number_of_queues_and_open_dead_letters
    mutant 'queues that are counted' internal/store/jobs/stats.rs \
        'MAX_QUEUES: usize = 200' \
        'MAX_QUEUES: usize = 200_000' \
        bounds::counting_costs_the_same_behind_any_number_of_queues_and_open_dead_letters
    mutant 'queues of ended jobs that are named' internal/store/jobs/stats.rs \
        'first_ended(conn, MAX_QUEUES)' \
        'first_ended(conn, 200_000)' \
        bounds::ten_thousand_queues_of_ended_jobs_make_no_answer_long_and_no_queue_slow
    mutant 'lanes of a queue by the key' internal/store/jobs/ended.rs \
        'WHERE lane IN ({lanes}) \' \
        'WHERE lane + 0 IN ({lanes}) \' \
        bounds::ten_thousand_queues_of_ended_jobs_make_no_answer_long_and_no_queue_slow
    mutant 'requests that disprove a look' internal/api/system/readiness.rs \
        'checks.last.take_if(|(_, check)| check.mysql);' \
        '' \
        starvation::a_request_that_cannot_reach_mysql_makes_the_next_probe_ask_anew
    mutant 'attempts after the last one of a life' internal/verify/life.rs \
        'if again && line.verdict.burns_attempt() && spent {' \
        'if again && line.verdict.burns_attempt() && spent && place > 1_000 {' \
        verify::a_life_beyond_its_bounds_is_found_and_one_that_just_keeps_them_is_not
    mutant 'attempts of departed workers in a check' internal/verify/life.rs \
        'if is_over(moment.patience_with_departed) {' 'if is_over(moment.patience) {' \
        verify::an_attempt_that_a_departed_worker_holds_is_found_beside_long_leases_and_not_while_it_may_be_given_back
    mutant 'time to give back what a departed worker holds' internal/verify/lib.rs \
        'TimeDelta::milliseconds(ms) + DEPARTED_WITHIN' 'TimeDelta::milliseconds(ms / 100_000) + DEPARTED_WITHIN / 100' \
        verify::an_attempt_that_a_departed_worker_holds_is_found_beside_long_leases_and_not_while_it_may_be_given_back
    mutant 'silent workers that have not left in a check' internal/store/verify/evidence.rs \
        "AND (r.via = 'process' OR r.stopped_at IS NULL)" "AND r.via = 'process'" \
        verify::an_attempt_that_a_departed_worker_holds_is_found_beside_long_leases_and_not_while_it_may_be_given_back
    mutant 'process that gives back in a check of departed workers' internal/store/verify/evidence.rs \
        "SUM(r.lives AND r.via = 'process') > 0" "SUM(r.lives AND r.via = 'process') >= 0" \
        verify::an_attempt_that_a_departed_worker_holds_is_found_beside_long_leases_and_not_while_it_may_be_given_back
    mutant 'run time of an attempt of a remote worker' internal/broker/remote_workers.rs \
        '(self.store.clock().now() - started_at).to_std()' '(started_at - started_at).to_std()' \
        remote_workers::the_run_time_of_a_worker_is_in_the_metrics_of_its_kind_and_the_history_of_its_queue
    mutant 'snoozes of a life' internal/verify/life.rs \
        'life.snoozes > MAX_SPARED' \
        'life.snoozes > 10 * MAX_SPARED' \
        verify::a_life_beyond_its_bounds_is_found_and_one_that_just_keeps_them_is_not
    mutant 'new life after an end' internal/verify/life.rs \
        'if before.is_some_and(|before| before.end.is_some()) {' \
        'if before.is_some_and(|before| before.end.is_some()) && place > 1_000 {' \
        verify::a_life_beyond_its_bounds_is_found_and_one_that_just_keeps_them_is_not
    mutant 'losses across a runner that could not read the job' internal/verify/life.rs \
        'if line.verdict != Verdict::Snoozed {' \
        'if line.number > 0 {' \
        verify::a_life_beyond_its_bounds_is_found_and_one_that_just_keeps_them_is_not
    mutant 'tag of a job in answers about operations' internal/api/bulk.rs \
        'respond_to_outcome(outcome, ResponseContent::Other, |ReleaseRunning { id }| {' \
        'respond_to_outcome(outcome, ResponseContent::Job, |ReleaseRunning { id }| {' \
        operations::answers_about_operations_carry_no_tag_of_a_job
    mutant 'due time after the clock was set back' internal/store/attempts/settle.rs \
        'Some(owed.execute_at.min(ceil_ms(now)))' \
        'Some(owed.execute_at)' \
        clocks::a_job_that_is_given_back_after_the_clock_of_mysql_was_set_back_is_due_at_once
    mutant 'hint about tables that do not match' internal/store/sql/error.rs \
        'if let Some(NO_SUCH_TABLE | NO_SUCH_COLUMN) = number(error) {' \
        'if let Some(NO_SUCH_TABLE | NO_SUCH_COLUMN) = number(error) && attempted.is_empty() {' \
        migrations::a_command_that_finds_no_tables_or_old_ones_says_to_run_tickr_migrate
    mutant 'verdict of a check about schedules' internal/app/check.rs \
        '(0, _) => Some(format!("{schedules} would make no job")),' \
        '(0, _) => None,' \
        cli::check_ends_with_1_when_something_would_be_rejected_also_in_an_embedding_program
    mutant 'keys of a wrong type' internal/index/lib.rs \
        'let misshapen = health.take_misshapen_report();' \
        'let misshapen = false && health.take_misshapen_report();' \
        redis_faults::keys_of_a_wrong_type_are_made_again_and_cost_no_job_more_than_the_bound
    mutant 'jobs before the note of a full list' internal/engine/reconciler.rs \
        'missing.into_iter().partition(is_ahead);' \
        'missing.into_iter().partition(|entry| is_ahead(entry) && entry.line.as_str().is_empty());' \
        redis_faults::a_lost_entry_comes_back_within_the_bound_also_if_its_list_left_jobs_out
    mutant 'jobs before the first one of a list' internal/engine/reconciler.rs \
        'missing.append(&mut self.unsure.remove(&page.line).unwrap_or_default());' \
        'drop(self.unsure.remove(&page.line));' \
        redis_faults::a_lost_entry_comes_back_within_the_bound_also_if_the_note_has_the_same_due_time
    mutant 'former time of a job that is made due' internal/index/hint.lua \
        "made_due[name .. ':' .. id] = true" '' \
        redis_faults::a_lost_entry_of_a_job_that_was_run_now_comes_back_within_the_bound
    mutant 'later one of two hints' internal/index/hint.lua \
        "made_due[name .. ':' .. id] = nil" '' \
        redis_faults::of_two_hints_about_one_job_the_later_one_decides_whether_it_is_scheduled
    mutant 'look at the policy of Redis in passes' internal/engine/reconciler.rs \
        'memory.looked_for_weakness.is_none_or(|looked| looked.elapsed() >= WEAKNESS_EVERY)' 'memory.noted.len() == usize::MAX' \
        redis_faults::readiness_follows_a_policy_that_is_changed_on_a_running_redis
    mutant 'connection of a fetcher that was idle' internal/index/fetch.rs \
        '&& idle < IDLE' '&& idle < IDLE * 1_000' \
        redis_faults::an_idle_limit_of_redis_is_no_outage_for_a_runner_with_busy_workers
    mutant 'size of a step of a scan' internal/index/partition.rs \
        'const SCANNED: usize = 5_000;' 'const SCANNED: usize = 10;' \
        redis_access::a_rebuild_from_nothing_passes_the_keys_of_other_programs_in_few_steps
    mutant 'lists that are looked up before the epoch goes' internal/index/partition.rs \
        'let ready = format!("{}*", keys.ready_prefix);' \
        'let ready = format!("{}*", keys.ready_prefix); self.call("", |mut conn| async move { conn.del(&keys.epoch).await }).await?;' \
        redis_access::a_rebuild_from_nothing_whose_deletion_fails_deletes_later
    mutant 'gap at the start during an outage' internal/broker/cluster_events.rs \
        'let began_in_outage = shared.out.load(Ordering::SeqCst);' 'let began_in_outage = false;' \
        events::clients_that_connect_while_redis_is_out_are_told_of_a_gap_then_and_at_its_return
    mutant 'gap of an outage that was known before' internal/broker/cluster_events.rs \
        'self.tell_outage();
        } else if self.read.is_none() {' '} else if self.read.is_none() {' \
        events::clients_that_connect_while_redis_is_out_are_told_of_a_gap_then_and_at_its_return
    mutant 'gap at the end of an outage' internal/broker/cluster_events.rs \
        'self.back_at = Some(Instant::now() + UNTIL_NOTICED);' '' \
        events::clients_that_connect_while_redis_is_out_are_told_of_a_gap_then_and_at_its_return
    mutant 'gap of a runner that saw no mark' internal/broker/cluster_events.rs \
        'let lost = !here && ended.is_some_and(' 'let lost = false && ended.is_some_and(' \
        events::a_lost_mark_and_a_lost_stream_are_told_as_gaps_by_the_runner_that_notices_them
    mutant 'gap of a stream that lost a position' internal/broker/cluster_events.rs \
        'if !page.is_whole && last != StreamPosition::START {' 'if false {' \
        events::a_lost_mark_and_a_lost_stream_are_told_as_gaps_by_the_runner_that_notices_them
    mutant 'another connection for events' internal/index/event_stream.rs \
        'if error.is_connection_dropped() =>' 'if error.is_connection_dropped() && texts.is_empty() =>' \
        events::an_idle_connection_that_redis_has_ended_costs_listeners_no_event
    mutant 'gap of events that did not reach the stream' internal/broker/cluster_events.rs \
        'self.lost |= !batch.is_empty();' '' \
        events::a_runner_that_was_cut_off_from_redis_tells_the_listeners_of_others_of_a_gap
    mutant 'exit code of a job that failed' cmd/tickr/ending.rs \
        '"failed" => FAILED,' \
        '"failed" => NOT_OVER,' \
        cli::the_exit_code_of_an_enqueue_that_waits_says_how_the_job_ended
    mutant 'burial of a runner after two leases' internal/engine/reaper.rs \
        'let over = delta(runner.lease * 2);' \
        'let over = delta(runner.lease);' \
        recovery::a_dead_runner_is_not_forgotten_while_a_lease_of_its_own_runs_on
    mutant 'own age of discarded dead letters' internal/store/retention/remove.rs \
        'discarded.is_none() && finished_at < now - age' \
        'finished_at < now - age' \
        dead_letters::a_discarded_dead_letter_keeps_its_reason_and_is_purged_by_its_own_age
    mutant 'late clock of a success' internal/store/attempts/complete.rs \
        'GREATEST(SYSDATE(6), TIMESTAMP(?))' \
        'LEAST(SYSDATE(6), TIMESTAMP(?))' \
        store::a_cancel_and_a_settle_that_waited_for_their_row_come_after_the_wait
    mutant 'one suspect at a time in the process of the runner' internal/engine/suspects.rs \
        'MAX_CHILDREN) } else { 1 };' \
        'MAX_CHILDREN) } else { workers };' \
        internal/engine/suspects.rs \
        'if self.no_children.load(Ordering::Relaxed) { 1 } else { self.most }' \
        'self.most' \
        poison::without_processes_suspects_run_one_at_a_time_beside_ordinary_work
    mutant 'suspects that the kernel kills first' internal/app/suspect.rs \
        '"/proc/self/oom_score_adj", "1000"' \
        '"/proc/self/oom_score_adj", "0"' \
        poison::suspects_run_in_processes_of_their_own_beside_ordinary_work
    mutant 'packet of the server for the largest job' internal/store/lib.rs \
        'if packet >= wanted {' \
        'if packet > 0 {' \
        mysql_faults::a_server_that_cannot_carry_the_largest_job_is_refused_at_the_start
    mutant 'question before the first key' cmd/tickr/api_keys.rs \
        'if whoami.get("open").and_then(Value::as_bool) != Some(true) {' \
        'if whoami.get("open").is_some() {' \
        cli::a_first_key_asks_before_it_locks_the_others_out
    mutant 'scope of a first key in the store' cmd/tickr/api_keys.rs \
        'if is_first && new.scope != Scope::Admin {' 'if is_first && new.scope != Scope::Admin && token.is_empty() {' \
        cli::a_first_key_made_in_the_store_is_an_admin_key_and_says_that_it_closes_the_api
    mutant 'word on a first key in the store' cmd/tickr/api_keys.rs \
        'if is_first {' 'if is_first && token.is_empty() {' \
        cli::a_first_key_made_in_the_store_is_an_admin_key_and_says_that_it_closes_the_api
    mutant 'end of a key without the API' cmd/tickr/api_keys.rs \
        '"revoke" if matches.get_flag("in-store") =>' \
        '"revoke" if matches.get_flag("in-store") && name().is_empty() =>' \
        starvation::a_key_is_ended_in_the_store_when_the_api_cannot_be_asked
    mutant 'exit code of an enqueue that waits' cmd/tickr/enqueue.rs \
        'ending::to_exit_code(&job, as_json).map_err(' \
        'Ok::<(), Failure>(()).map_err(' \
        cli::the_exit_code_of_an_enqueue_that_waits_says_how_the_job_ended
    mutant 'lines of a bulk operation in a pipe' cmd/tickr/operations.rs \
        'if bar.is_hidden() && !as_json' 'if bar.is_hidden() && as_json' \
        cli::a_bulk_operation_that_is_followed_in_a_pipe_prints_lines_before_its_end
    mutant 'lines in a pipe beside a terminal' cmd/tickr/operations.rs \
        'if std::io::stdout().is_terminal() { Prog' 'if !as_json { Prog' \
        cli::a_bulk_operation_that_is_followed_in_a_pipe_prints_lines_before_its_end
    mutant 'rate of a bulk operation without one' cmd/tickr/operations.rs \
        'Value::Null if field == "rate" =>' 'Value::Null if field.is_empty() =>' \
        cli::a_bulk_operation_that_is_followed_in_a_pipe_prints_lines_before_its_end
    mutant 'setting behind the kind email' internal/broker/draft.rs \
        'if self.kind == "email" {' 'if self.kind.is_empty() {' \
        problems::a_kind_that_needs_a_setting_is_refused_with_the_name_of_the_setting
    mutant 'wrong field of a cron expression' internal/job/schedule/cadence.rs \
        'if parse_cron(&alone.join(" ")).is_err() {' 'if parse_cron(&alone.join(" ")).is_err() && given.is_empty() {' \
        problems::a_client_is_told_in_words_what_would_be_right
    mutant 'order of dead letters in top' cmd/tickr/top.rs \
        '?order=time&limit=' '?limit=' \
        cli::top_prints_one_read_of_the_api_as_json
    mutant 'headers of proxies at an open API' internal/api/http/origin.rs \
        'FORWARDED.contains(name) || name.as_str().starts_with("x-forwarded-")' \
        'FORWARDED.is_empty() && name.as_str().is_empty()' \
        security::an_open_api_refuses_pages_of_other_sites_proxies_and_hosts_that_cannot_be_read
    mutant 'Host header that cannot be read' internal/api/http/origin.rs \
        ')?.parse().ok()?;' \
        ').and_then(|text| text.parse().ok()).unwrap_or_else(|| Authority::from_static("localhost"));' \
        security::an_open_api_refuses_pages_of_other_sites_proxies_and_hosts_that_cannot_be_read
    mutant 'word to proxies about streams' internal/api/events.rs \
        'HeaderValue::from_static("no"))]' 'HeaderValue::from_static("yes"))]' \
        security::a_proxy_in_front_needs_an_api_key_and_nothing_else
    mutant 'host of Azure behind the wide switch' internal/handlers/http/guard.rs \
        'IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),' \
        'IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)),' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'stop of handlers whose leases end' internal/engine/heartbeat.rs \
        'let stopped = live.stop_expired(lasting(lease));' \
        'let stopped = live.stop_expired(lasting(lease) * 1_000);' \
        leases::a_runner_that_cannot_renew_stops_its_handlers_before_their_leases_end
    mutant 'drained runners in verify' internal/store/verify/startable.rs \
        'WHERE stopped_at IS NULL AND drained_at IS NULL' \
        'WHERE stopped_at IS NULL' \
        verify::what_waits_on_purpose_breaks_no_promise
    mutant 'wait of a suspect in verify' internal/verify/drift.rs \
        'let may_wait = |suspect: &StuckJob| now.suspects_run() || suspect.job.execute_at >= late;' \
        'let may_wait = |suspect: &StuckJob| suspect.job.execute_at < late && now.suspects_run();' \
        verify::what_waits_on_purpose_breaks_no_promise
    mutant 'size of a statement' internal/store/sql/batches.rs \
        '(fit == 0 || total + bytes(&rows[fit]) <= most)' \
        '(fit == 0 || total + bytes(&rows[fit]) <= most.max(usize::MAX))' \
        store::logs_and_batches_larger_than_the_servers_packet_are_written_in_pieces
    mutant 'refusals while the tables are migrated' internal/api/system/health.rs \
        'json(StatusCode::SERVICE_UNAVAILABLE, answer)
    };
    let later' \
        'json(StatusCode::OK, answer)
    };
    let later' \
        migrations::serve_answers_probes_while_it_waits_for_a_migration_and_starts_when_it_is_done
    mutant 'expiry in the claim' internal/store/attempts/claim.rs \
        'expires_at > SYSDATE(6))' 'SYSDATE(6) > 0)' \
        store::a_claim_takes_no_job_that_has_expired
    mutant 'expired jobs that execute' internal/store/jobs/expire.rs \
        'if at <= now && owed.state != State::Executing => {' 'if at <= now => {' \
        expiry::a_running_attempt_goes_on_after_the_expiry_and_a_retry_does_not_start
    mutant 'place of an expired job' internal/store/jobs/expire.rs \
        'close_places(conn, &places, now)' 'close_places(conn, &places[..0], now)' \
        expiry::an_expired_job_lets_the_next_one_of_its_order_key_go_on
    mutant 'turn of a parked job that expired' internal/store/jobs/expire.rs \
        'if waits_for_turn(owed.execute_at) {' 'if owed.keyed {' \
        expiry::a_job_that_is_parked_at_its_limit_expires
    mutant 'unique key of an expired job' internal/store/jobs/expire.rs \
        '.filter(|(_, owed, _)| owed.keyed)' '.filter(|(_, owed, _)| owed.losses > 9)' \
        expiry::a_job_that_did_not_start_in_time_fails_in_a_group_of_its_own_and_an_operator_may_run_it
    mutant 'pages of expired jobs' internal/engine/expiry.rs \
        'if !more {' 'if true {' \
        expiry::five_thousand_expired_jobs_end_within_seconds_and_hold_up_no_other
    mutant 'keys of follow-up jobs before all others' internal/store/attempts/settle.rs \
        'let ordered = lock_keys_of_and(&mut tx, &may_be_ordered, of_follow_ups).await?;' \
        'let _: std::collections::BTreeSet<&[u8]> = of_follow_ups; let ordered = lock_keys_of_and(&mut tx, &may_be_ordered, std::collections::BTreeSet::new()).await?;' \
        follow_ups::follow_up_jobs_with_each_others_order_keys_cause_no_deadlock
    mutant 'attempt that a cancel leaves alone' internal/api/jobs/mod.rs \
        'Some(UnlessWord::Executing) => JobAction::CancelUnlessExecuting,' 'Some(UnlessWord::Executing) => JobAction::Cancel,' \
        cancel::a_cancel_unless_executing_leaves_an_attempt_alone_and_still_ends_a_job_that_waits \
        cancel::a_cancel_unless_executing_that_races_the_start_either_prevents_it_or_does_nothing
    mutant 'producer of a cancelled job' internal/api/jobs/mod.rs \
        'if !asker.sees_every_job() {' 'if false && !asker.sees_every_job() {' \
        security::a_producer_cancels_the_jobs_whose_ids_it_was_given_and_no_job_of_another
    mutant 'kind of a new payload' internal/api/jobs/change.rs \
        'let job = api.broker.prepare(draft).map_err(unfit)?;' \
        'let text = draft.payload.clone(); let job = match api.broker.prepare(draft) { Ok(job) => job, Err(_) => return Ok(NewPayload { text, host: None }) };' \
        change::a_waiting_job_gets_another_payload_that_fits_its_kind_and_runs_with_it
    mutant 'removal of rows that became jobs' internal/store/outbox/pages.rs \
        'for ids in done.chunks(MAX_ROWS) {' 'for ids in done[..0].chunks(MAX_ROWS) {' \
        outbox::a_job_exists_exactly_if_the_transaction_was_committed
    mutant 'rows whose jobs exist' internal/store/outbox/pages.rs \
        'if known.contains(&job.id.uuid()) {' 'if known.len() > 100_000 {' \
        outbox::a_job_exists_exactly_if_the_transaction_was_committed
    mutant 'rows that another session locks' internal/store/outbox/heads.rs \
        'FOR UPDATE{SKIP_LOCKED}"' 'FOR UPDATE{}"' \
        internal/store/outbox/heads.rs \
        '            rows.compares()
        );' '            rows.compares(),
            if SKIP_LOCKED.is_empty() { "" } else { "" }
        );' \
        outbox::a_transaction_that_stays_open_delays_no_other_row
    mutant 'rows for another version' internal/broker/outbox.rs \
        'if age < LEFT_AT_MOST && another_may_read' 'if age > 100 * LEFT_AT_MOST && another_may_read' \
        outbox::a_row_whose_kind_only_another_runner_has_is_left_to_it
    mutant 'ticks for another version' internal/broker/schedules.rs \
        'kind.as_str()) && self.is_left(&plan.row) {' 'kind.as_str()) && self.is_left(&plan.row) && false {' \
        versions::a_tick_that_one_version_cannot_fire_is_left_to_the_other_while_it_lives
    mutant 'lateness of ticks for another version' internal/broker/schedules.rs \
        'from, Instant::now())).max(from);' 'from, Instant::now()) * 0).max(from);' \
        versions::a_tick_that_one_version_cannot_fire_is_left_to_the_other_while_it_lives
    mutant 'pages of the ticks of the first schedule' internal/engine/janitor.rs \
        'self.schedule = next;' 'self.schedule = next.filter(|next| !next.is_empty());' \
        janitor::many_old_ticks_of_the_first_schedule_hold_up_the_removal_of_no_other
    mutant 'parent in the outbox' internal/store/outbox/pages.rs \
        '.filter(|parent| *parent < row).collect();' '.filter(|parent| *parent < row && row.is_nil()).collect();' \
        outbox::a_row_stays_while_the_row_of_its_parent_is_held \
        outbox::a_row_waits_for_a_parent_that_only_another_runner_can_read
    mutant 'parents in front of their child alone' internal/store/outbox/pages.rs \
        '*parent < row' '*parent != row' \
        outbox::a_row_whose_parent_is_behind_it_is_rejected
    mutant 'answers to the rows of parents' internal/store/outbox/pages.rs \
        'answers_to(conn, parents).await?' 'answers_to(conn, &parents[..0]).await?' \
        outbox::a_row_waits_for_the_job_that_was_the_answer_to_the_row_of_its_parent
    mutant 'completed answers to the rows of parents' internal/store/outbox/pages.rs \
        'completed_parents: completed.collect()' 'completed_parents: completed.take(0).collect()' \
        outbox::a_row_waits_for_the_job_that_was_the_answer_to_the_row_of_its_parent
    mutant 'row that becomes a job after its answer' internal/store/outbox/answers.rs \
        'answers.remove(&JobId::from_uuid(job.try_get("id")?));' 'JobId::from_uuid(job.try_get("id")?);' \
        outbox::a_row_waits_for_the_job_that_was_the_answer_to_the_row_of_its_parent
    mutant 'row that is its own parent' internal/broker/outbox.rs \
        'if options.after.contains(&JobId::from_uuid(row.id)) {' 'if options.after.contains(&JobId::from_uuid(Uuid::nil())) {' \
        outbox::a_row_that_names_itself_as_a_parent_is_rejected
    mutant 'row of a removed job that keeps its unique key' internal/store/outbox/pages.rs \
        ' AND job_id = ? AND held_until > UTC_TIMESTAMP(3)' \
        ' AND job_id = ? AND held_until IS NULL' \
        outbox::a_repeated_row_whose_removed_job_keeps_its_unique_key_holds_up_no_other_row
    mutant 'answer that is the job itself' internal/store/rows/links.rs \
        ' && *parent != job.id;' \
        ';' \
        outbox::a_row_is_rejected_whose_parent_was_answered_with_the_removed_job_of_the_row_itself
    mutant 'rows of a dead leader' internal/store/change_summary.rs \
        '- INTERVAL 3 SECOND' '- INTERVAL 3 HOUR' \
        internal/store/change_summary.rs \
        'FROM outbox_leader WHERE lease_until > UTC_TIMESTAMP(6)), \' 'FROM outbox_leader), \' \
        outbox::rows_are_moved_soon_after_their_leader_has_died
    mutant 'id of a row of the outbox' internal/broker/outbox.rs \
        'if !is_job_id(row.id, row.created_at) {' 'if row.id.is_nil() {' \
        outbox::what_cannot_become_a_job_is_kept_with_the_reason_and_runs_after_a_fix
    mutant 'wake of a nudged outbox' internal/broker/outbox.rs \
        'self.outbox_nudge.notify_one();' 'drop(std::sync::Arc::clone(&self.outbox_nudge));' \
        outbox::a_nudge_starts_jobs_within_milliseconds_and_needs_the_right_key
    mutant 'log of a success' internal/store/attempts/complete.rs \
        'insert_logs_step(script, &self.logs);' \
        'insert_logs_step(script, &self.logs[..0]);' \
        attempt_logs::every_attempt_keeps_the_lines_of_its_handler
    mutant 'log of every other attempt' internal/store/attempts/settle.rs \
        'insert_logs_step(&mut script, logs);' \
        'insert_logs_step(&mut script, &logs[..0]);' \
        attempt_logs::every_attempt_keeps_the_lines_of_its_handler
    mutant 'no row for an attempt without lines' 'internal/store/attempts/complete.rs internal/store/attempts/settle.rs' \
        'let log = self.item.log.as_deref()?;' \
        'let log = self.item.log.as_deref().unwrap_or_default();' \
        attempt_logs::an_attempt_without_lines_has_no_log_and_no_row
    mutant 'bytes of a log in a statement' internal/store/rows/attempt_logs.rs \
        '40 + self.log.len()' \
        '40' \
        store::logs_and_batches_larger_than_the_servers_packet_are_written_in_pieces
    mutant 'verdict without a refused log' internal/engine/executor.rs \
        'error.is_about_the_row() && settlement.log.is_some() =>' \
        'error.is_about_the_row() && settlement.log.is_some() && bare =>' \
        attempt_logs::a_log_that_mysql_refuses_costs_the_attempt_nothing_else
    mutant 'logs of a removed job' internal/store/retention/remove.rs \
        '("attempt_logs", "job_id", "PRIMARY"),' \
        '' \
        attempt_logs::logs_go_with_their_jobs
    mutant 'right to read a log' internal/api/jobs/attempt_log.rs \
        'asker.require_access(&job)?;' \
        'let _ = (asker, job);' \
        attempt_logs::a_key_that_may_not_see_a_job_may_not_read_its_logs
    mutant 'size of a log' internal/telemetry/attempt_log.rs \
        'self.text.len() + line.len() > ROOM' \
        'self.text.len() + line.len() > ROOM && self.dropped > 0' \
        attempt_logs::a_log_keeps_its_newest_lines_and_counts_the_dropped_ones
    mutant 'control characters in a log' internal/telemetry/attempt_log.rs \
        'c if is_terminal_control(c) => self.0.extend(c.escape_unicode()),' \
        'c if is_terminal_control(c) => self.0.push(c),' \
        attempt_logs::a_log_steers_no_terminal_and_has_one_line_for_each_event
    mutant 'level of a log' internal/telemetry/attempt_log.rs \
        'with_attempt_log(|log| log.keeps(*metadata.level()))' \
        'with_attempt_log(|_| true)' \
        attempt_logs::the_setting_decides_which_lines_are_kept
    mutant 'quiet crates in a log' internal/telemetry/attempt_log.rs \
        '&& !is_quiet(metadata.target(), *metadata.level())' \
        '&& metadata.is_event()' \
        attempt_logs::the_setting_decides_which_lines_are_kept
    mutant 'log of a task of a handler' internal/handlers/context.rs \
        'log: log.clone(),' \
        'log: AttemptLog::new(tracing::level_filters::LevelFilter::OFF),' \
        attempt_logs::the_setting_decides_which_lines_are_kept
    mutant 'message of a panic in a log' internal/telemetry/logs.rs \
        'log.write(Level::ERROR, format_args!("panicked at {at}: {message}"));' \
        'let _ = (log, message);' \
        attempt_logs::a_served_job_keeps_where_and_why_it_panicked_also_in_a_process_of_its_own
    mutant 'list of copied rows' internal/store/outbox/copies.rs \
        'let ids = copied.chunks(16)' 'let ids = copied[..0].chunks(16)' \
        outbox_sources::a_runner_that_lost_the_source_copies_and_deletes_nothing_that_it_read_before
    mutant 'list of copied rows after a crash' internal/engine/outbox_sources.rs \
        'copied: turn.copied.into_iter().collect(),' 'copied: turn.copied.into_iter().take(0).collect(),' \
        outbox_sources::a_lost_answer_of_either_server_neither_loses_nor_doubles_a_row
    mutant 'turn of a copy' internal/store/outbox/copies.rs \
        'if turn != copy.turn {' 'if turn < copy.turn {' \
        outbox_sources::a_runner_that_lost_the_source_copies_and_deletes_nothing_that_it_read_before
    mutant 'deletion of a row with a used id' internal/store/outbox/source.rs \
        'WHERE (t.created_at > ?) IS NOT TRUE' 'WHERE (t.created_at > ? OR TRUE)' \
        outbox_sources::a_runner_that_lost_the_source_copies_and_deletes_nothing_that_it_read_before
    mutant 'copied rows that are locked' internal/store/outbox/source.rs \
        'Err(error) if error.is_lock_wait() => Ok(false),' 'Err(error) if error.is_lock_wait() && ids.is_empty() => Ok(false),' \
        outbox_sources::a_row_that_is_copied_and_locked_at_the_source_is_not_copied_again
    mutant 'copied rows that are deleted together beside a locked one' internal/store/outbox/deletion.rs \
        'let size = ids.len().div_ceil(LISTS).max(1);' 'let size = LISTS.min(1);' \
        outbox_sources::rows_are_copied_before_a_runner_waits_for_a_copied_row_that_is_locked
    mutant 'outbox of a tickr as a source' internal/store/outbox/source.rs \
        'column.name == "copied_from"' 'column.name == "no such column"' \
        outbox_sources::the_outbox_of_a_tickr_is_no_source_and_keeps_its_rows
    mutant 'rights at a source' internal/store/outbox/source.rs \
        '("delete from the table", "DELETE FROM' '("read again", "SELECT id FROM' \
        outbox_sources::a_missing_table_column_or_right_and_a_replica_are_named
    mutant 'rows of a source one by one' internal/engine/outbox_sources.rs \
        'if error.is_about_the_row() => {}' 'if error.is_about_the_row() && error.is_transient() => {}' \
        outbox_sources::a_row_that_the_outbox_cannot_hold_is_rejected_with_its_source_and_holds_up_no_other
    mutant 'nudge of a source' internal/broker/outbox.rs \
        'self.source_nudges.send_modify(|nudges| *nudges += 1);' '' \
        outbox_sources::a_nudged_runner_takes_the_source_over_and_starts_jobs_within_milliseconds
    mutant 'age of a copied row' internal/store/outbox/leader.rs \
        'COALESCE(copied_at, created_at) AS since' 'created_at AS since' \
        outbox_sources::the_lag_of_copied_rows_begins_with_the_copy
    mutant 'sources in the janitor' internal/store/retention/forget.rs \
        "INTERVAL ? SECOND AND copied = ''" "INTERVAL ? SECOND AND copied = 'x'" \
        janitor::the_janitor_empties_its_tables_and_another_carries_on
    mutant 'rejected rows in the janitor' internal/store/retention/forget.rs \
        'DELETE FROM outbox_rejected WHERE rejected_at <' 'DELETE FROM outbox_rejected WHERE rejected_at < 0 AND rejected_at <' \
        janitor::the_janitor_empties_its_tables_and_another_carries_on
    mutant 'rows of the outbox one by one' internal/store/outbox/pages.rs \
        'Err(error) if error.is_about_the_row() => self.move_one_by_one(rows, prepare).await,' \
        'Err(error) if error.is_about_the_row() && error.is_transient() => self.move_one_by_one(rows, prepare).await,' \
        outbox::a_row_that_mysql_refuses_as_a_job_is_rejected_and_holds_up_no_other
    mutant 'keys of rows that a page does not move' internal/store/outbox/pages.rs \
        'if apart.concerns(row, job) {' 'if apart.concerns(row, job) && row.is_nil() {' \
        outbox::rows_whose_order_keys_another_session_is_making_hold_up_no_other_row
    mutant 'keys that are being made by another session' internal/store/outbox/locks.rs \
        'Some(key) => lock_at_once(conn, &[key]).await,' 'Some(key) => Ok(!key.is_empty()),' \
        outbox::rows_whose_order_keys_another_session_is_making_hold_up_no_other_row
    mutant 'locks that many rows need' internal/broker/outbox.rs \
        'if let Some(lock) = lock {' 'if let Some(lock) = lock.filter(|_| false) {' \
        internal/broker/outbox.rs \
        'None if may_wait => WaitsFor::Everything,' 'None => WaitsFor::Everything,' \
        outbox::rows_of_a_locked_batch_hold_up_no_row_behind_them_for_more_than_one_wait
    mutant 'rows that are tried without a wait' internal/broker/outbox.rs \
        'None if may_wait => WaitsFor::Everything,' 'None => WaitsFor::Everything,' \
        outbox::rows_that_need_different_locked_rows_hold_up_no_row_behind_them_for_more_than_one_wait \
        outbox::locked_rows_in_several_pages_hold_up_no_row_behind_them_for_more_than_one_wait
    mutant 'lock that a row has waited for' internal/store/outbox/locks.rs \
        '*tried = Some(NeededLock::UniqueKey(job.kind.clone(), key.clone()));' \
        '*tried = job.options.batch.map(NeededLock::Batch);' \
        internal/broker/outbox.rs \
        'needed.len() == 1 && ' 'needed.len() < 9 && ' \
        outbox::a_locked_unique_key_holds_up_no_other_row_of_the_same_batch_for_more_than_one_wait
    mutant 'rows with the unique key of a locked row' internal/broker/outbox.rs \
        '|| keys.unique_key.is_some_and(|key| self.unique_keys.contains(&key))' \
        '|| keys.unique_key.is_some_and(|key| self.unique_keys.contains(&key) && row.is_nil())' \
        outbox::a_newer_row_with_the_unique_key_of_a_row_that_is_locked_takes_its_place
    mutant 'unique keys of rows that wait for other rows' internal/broker/outbox.rs \
        'page.left_keys.iter().for_each(' 'page.left_keys.iter().take(0).for_each(' \
        outbox::a_newer_row_with_the_unique_key_of_a_row_that_waits_or_is_held_takes_its_place
    mutant 'unique keys of rows that other sessions hold' internal/store/outbox/pages.rs \
        '(page.next.is_some() || jobs.values().any(|job| job.unique_key.is_some()))' \
        '(last.is_nil() && jobs.values().any(|job| job.unique_key.is_some()))' \
        outbox::a_newer_row_with_the_unique_key_of_a_row_that_waits_or_is_held_takes_its_place
    mutant 'row of the outbox before its order key' internal/store/outbox/locks.rs \
        'sqlx::query(sql).bind(row).fetch_optional(&mut *conn).await?;' 'let _ = (sql, row);' \
        store::a_move_whose_row_another_session_locks_waits_for_it_with_no_order_key_locked
    mutant 'turns of rows of the outbox' internal/store/outbox/pages.rs \
        'take(subjects_of(&request.jobs), MOVE_ONE)' \
        'take(subjects_of(&request.jobs).into_iter().filter(|_| false).collect(), MOVE_ONE)' \
        outbox::a_row_that_waits_for_a_lock_takes_turns_with_enqueues_and_leaves_a_connection_to_changes
    mutant 'expired jobs one by one' internal/store/jobs/expire.rs \
        'let mut all = ExpiredJobs { more, ..ExpiredJobs::default() };' \
        'let mut all = ExpiredJobs { more, ..ExpiredJobs::default() }; if !found.is_empty() { return Err(error); }' \
        store::an_expired_job_whose_row_cannot_be_read_holds_up_no_other
    mutant 'parents in a success without a read' internal/store/attempts/complete.rs \
        'AND links < {AWAITED}{guard} ORDER BY id' 'AND links < {AWAITED} + 9{guard} ORDER BY id' \
        dependencies::children_that_are_accepted_while_their_parent_ends_are_not_forgotten
    mutant 'mark of an awaited parent' internal/store/rows/links.rs \
        'SET links = links | {AWAITED}' 'SET links = links | ({AWAITED} & 0)' \
        dependencies::a_job_waits_for_all_of_its_parents_and_says_so
    mutant 'row of an ended parent' internal/store/rows/links.rs \
        'linked.iter().filter(|end| end.links & AWAITED != 0)' 'linked.iter().filter(|end| end.links & AWAITED > 9)' \
        dependencies::a_job_waits_for_all_of_its_parents_and_says_so
    mutant 'rows of ended parents in a summary' internal/store/change_summary.rs \
        'EXISTS (SELECT 1 FROM parent_ends)' '(SELECT 0)' \
        dependencies::the_row_of_an_ended_parent_is_followed_by_any_runner_within_seconds
    mutant 'look at all blocked jobs' internal/engine/dependencies.rs \
        'if recheck.at.elapsed() >= RECHECK_EVERY {' 'if recheck.at.elapsed() >= RECHECK_EVERY * 1_000 {' \
        dependencies::a_child_whose_parent_was_ended_by_an_older_version_is_found
    mutant 'parents that have not ended' internal/store/rows/links.rs \
        'if *self == Self::Satisfied {' 'if *self == Self::Satisfied && false {' \
        dependencies::a_job_waits_for_all_of_its_parents_and_says_so \
        dependencies::random_graphs_run_in_order_on_two_runners_while_redis_is_flushed
    mutant 'parents that failed' internal/store/rows/links.rs \
        '(Some(_), OnParentFailure::Hold) => outcome.wait(),' '(Some(_), OnParentFailure::Hold) => {}' \
        dependencies::a_failed_parent_cancels_runs_or_holds_its_children_as_they_wish
    mutant 'lock of the children of a replayed parent' internal/store/rows/links.rs \
        '" AND execute_at = ? ORDER BY id FOR UPDATE"' '" AND execute_at = ? ORDER BY id"' \
        dependencies::a_child_that_is_told_of_a_failure_during_a_replay_waits_for_the_replay_alone \
        dependencies::a_replay_leaves_a_child_that_is_let_go_meanwhile_its_failed_parent
    mutant 'lock of a batch that takes a job' internal/store/rows/links.rs \
        'WHERE id = ? LOCK IN SHARE MODE' 'WHERE id = ?' \
        batches::a_batch_does_not_end_while_a_job_is_being_added
    mutant 'follow-up jobs of a cancelled batch' internal/store/rows/links.rs \
        'waits |= job.options.batch.is_some_and(|batch| cancelled.contains(&batch));' '' \
        batches::after_the_cancel_of_a_batch_no_job_of_it_starts
    mutant 'count of a job that runs again' internal/store/rows/links.rs \
        'changes.of(batch).end(end, -1);' 'changes.of(batch).end(end, 0);' \
        batches::failures_are_told_once_and_a_retry_of_the_batch_leads_to_success
    mutant 'counts of batches in a summary' internal/store/change_summary.rs \
        'EXISTS (SELECT 1 FROM batch_changes) OR ' '' \
        batches::changes_that_a_dead_runner_left_are_counted_within_seconds
    mutant 'batches behind one that cannot be counted' internal/engine/batches.rs \
        '                set_aside.insert(batch, Instant::now() + FAILED_RESTS);
                failed = Some(error);' '                return Err(error);' \
        internal/engine/batches.rs '    others.rotate_left(place);' '    let _ = place;' \
        batches::a_batch_that_cannot_be_counted_holds_up_no_other
    mutant 'batch of a callback of a nested one' internal/store/batches/callbacks.rs \
        'batch: parent, ..stored.options' 'batch: None, ..stored.options' \
        batches::a_nested_batch_counts_as_one_job_of_its_parent_with_its_callbacks
    mutant 'jobs of a batch that wait for their turn' internal/store/jobs/actions.rs \
        'in_list("DELETE FROM blocked_jobs WHERE job_id IN", ids, &tail).execute(&mut *conn).await?;' '' \
        batches::after_the_cancel_of_a_batch_no_job_of_it_starts
    mutant 'end of an open batch' internal/store/batches/count.rs \
        'counts.pending() <= 0 && batch.closed_at.is_some()' 'counts.pending() <= 0' \
        batches::a_batch_ends_after_its_last_job_and_starts_each_callback_once
    mutant 'failure that was retried before the count' internal/store/batches/count.rs \
        'any_failed |= number("failed")? > 0;' '' \
        batches::a_failure_is_told_also_when_its_job_is_retried_before_a_runner_counts
    mutant 'upper end of the walk over batches' internal/store/batches/read.rs \
        '.bind(first_id_of(before))' '.bind(Uuid::max())' \
        batches::the_removal_of_old_batches_reads_none_that_is_too_young
    mutant 'advice for the child of a removed parent' internal/api/jobs/explain.rs \
        '_ if is_removed => ' '_ if is_removed && failed => ' \
        dependencies::a_removed_parent_that_failed_still_holds_its_children
    mutant 'rows of a removed parent' internal/store/retention/remove.rs \
        '("job_parents", "child_id", "job_parents_child"),' '("job_parents", "parent_id", "PRIMARY"),' \
        dependencies::a_removed_parent_that_failed_still_holds_its_children
    mutant 'children told before a removal' internal/store/retention/remove.rs \
        'if self.untold {' 'if self.untold && self.owed {' \
        dependencies::a_parent_that_completed_stays_until_its_children_have_been_told
    mutant 'children of a replayed job' internal/store/dead_letters.rs \
        'let replays = made.iter().map(' 'let replays = made.iter().take(0).map(' \
        dependencies::a_replay_takes_the_place_of_a_failed_parent
    mutant 'nested batches of an old batch' internal/store/batches/read.rs \
        'WHERE n.parent = b.id) AS old' 'WHERE n.parent = b.id AND n.id IS NULL) AS old' \
        batches::an_outer_batch_is_kept_as_long_as_its_nested_ones_and_counts_a_later_success
    mutant 'pages of nested batches' internal/store/batches/cancel.rs \
        '.filter(|_| nested.len() as u32 == NESTED)' '.filter(|_| nested.is_empty())' \
        batches::a_cancel_reaches_any_number_of_nested_batches
    mutant 'nested batches of a cancel that was broken off' internal/engine/batches.rs \
        'shared.store.unmarked_nested(batch).await?' 'shared.store.unmarked_nested(batch).await?.into_iter().take(0)' \
        batches::a_cancel_whose_process_died_after_the_first_mark_reaches_the_nested_batches
    mutant 'ended parents of a child that runs anyway' internal/store/jobs/dependencies.rs \
        "<> 'run')))" "<> 'never')))" \
        dependencies::explain_of_a_child_that_runs_anyway_names_the_parents_that_have_not_ended
    mutant 'retried parents of a child that runs anyway' internal/store/jobs/dependencies.rs \
        '(o.id IS NOT NULL OR COALESCE' '(COALESCE' \
        dependencies::explain_of_a_child_that_runs_anyway_names_the_parents_that_have_not_ended
    mutant 'answers in place of parents' internal/store/jobs/unique_keys.rs \
        'wait_for_the_answer(&mut new, jobs, &decided);' '' \
        dependencies::a_job_waits_for_the_answer_in_place_of_its_parent
    mutant 'mark of a parent that is replaced' internal/store/jobs/unique_keys.rs \
        'owed.links |= AWAITED;' 'owed.links |= 0;' \
        dependencies::a_child_is_told_at_once_of_a_parent_that_its_own_request_replaces
    mutant 'removed answers in place of parents' internal/store/jobs/unique_keys.rs \
        'holder.state == State::Completed)' 'holder.state == State::Failed)' \
        dependencies::a_job_runs_whose_parent_is_answered_with_a_completed_job_that_was_removed
    mutant 'parents with one answer' internal/job/spec.rs \
        'if !self.after.contains(&parent) {' 'if !self.after.contains(&parent) || self.batch.is_none() {' \
        dependencies::parents_that_have_one_answer_are_one_parent
    mutant 'rule of a callback' internal/handlers/http/response.rs \
        'rule.and_then(|rule| rule.judge(status, &self.body, &self.secrets))' 'rule.and_then(|rule| rule.judge(status, &self.body, &self.secrets)).filter(|_| false)' \
        receivers::a_callback_is_judged_by_the_value_in_the_body
    mutant 'body that breaks off' internal/handlers/http/response.rs \
        'if self.broke_off {' \
        'if self.broke_off && self.body.is_empty() {' \
        receivers::a_body_that_decides_is_read_to_its_end_and_one_that_breaks_off_decides_nothing
    mutant 'whole limit for a body that decides' internal/handlers/http/response.rs \
        'if decides { (deadline, JUDGED_BYTES + 1) }' \
        'if decides { (deadline.min(Instant::now() + BODY_TIME), JUDGED_BYTES + 1) }' \
        receivers::a_body_that_decides_is_read_to_its_end_and_one_that_breaks_off_decides_nothing
    mutant 'body that is too long to decide' internal/handlers/http/response.rs \
        'let is_judged = decides && body.len() <= JUDGED_BYTES;' \
        'let is_judged = decides;' \
        receivers::a_callback_is_judged_by_the_value_in_the_body
    mutant 'check of follow-up jobs' internal/engine/executor.rs \
        'Err((verdict, error)) => return failed(settlement, verdict, error),' \
        'Err((verdict, error)) => drop((verdict, error)),' \
        follow_ups::at_most_a_thousand_jobs_follow_one_and_all_are_checked_before_any_is_written \
        panics::a_follow_up_and_a_replay_whose_check_panics_are_not_written
    mutant 'due time in the transaction of a tick' internal/store/schedules/ticks.rs \
        'standing.is_as(&plan.row) && is_due(plan)' \
        'standing.is_as(&plan.row) && (is_due(plan) || true)' \
        schedules::a_tick_that_is_not_due_by_the_clock_of_mysql_is_not_written
    mutant 'registration before the API answers' internal/app/mod.rs \
        '        Box::pin(Engine::enlist(&store, &registry, &settings)).await;
' \
        '' \
        runners::a_runner_is_registered_before_it_answers
    mutant 'bound on interruptions by a lost lease' internal/engine/executor.rs \
        'settlement.again = Again::NowWithinBounds;' \
        'settlement.again = Again::Now;' \
        leases::a_job_whose_leases_could_not_be_renewed_a_hundred_times_fails
    mutant 'wait for a locked table' internal/store/sql/connection.rs \
        'innodb_lock_wait_timeout = 5, lock_wait_timeout = 10 /*M' \
        'innodb_lock_wait_timeout = 5 /*M' \
        mysql_faults::no_statement_waits_for_a_locked_table_for_longer_than_its_caller
    mutant 'verdict that the account may not write' internal/engine/executor.rs \
        'Err(error) if error.is_about_the_row() => {
                // The lease ends' \
        'Err(error) if !error.is_transient() => {
                // The lease ends' \
        mysql_faults::results_outlive_a_right_that_is_taken_away_while_they_come
    mutant 'session after a missing right' internal/store/sql/connection.rs \
        ' || lacks_right(error)' \
        '' \
        mysql_faults::results_outlive_a_right_that_is_taken_away_while_they_come
    mutant 'permits after a request without an answer' internal/engine/permits.rs \
        '(counts.granted, counts.recorded) = (asked.used, None);' \
        '(counts.granted, counts.recorded) = (asked.used.max(u32::from(turn.had)), None);' \
        queues::a_permit_whose_return_mysql_carried_out_without_an_answer_starts_no_job
    mutant 'tables that are altered in place' internal/store/migrate/mod.rs \
        '    let _ = sqlx::raw_sql(NO_COPY).execute(&mut *conn).await;
' \
        '' \
        migrations::writes_go_on_while_a_migration_changes_large_tables
    mutant 'SQL mode of a session' internal/store/sql/connection.rs \
        "sql_mode = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'," \
        '' \
        mysql_faults::the_servers_own_defaults_change_nothing_and_its_limits_are_kept
    mutant 'full lease after an interruption' internal/engine/heartbeat_history.rs \
        'self.interrupted(now, by) <= ' \
        'self.interrupted(now, Duration::ZERO) <= ' \
        leases::after_an_outage_no_runner_judges_another_before_a_lease_of_that_one
    mutant 'gap beside a shorter lease' internal/engine/heartbeat_history.rs \
        '(theirs >= lease || self.has_watched(now, theirs))' \
        '(theirs >= lease || self.watched.is_some())' \
        remote_workers::a_stall_in_which_only_the_short_lease_of_a_worker_ends_costs_it_no_attempt
    mutant 'looks in a shorter lease' internal/engine/reaper.rs \
        'pause = short.map_or(usual, |short| short.min(usual));' \
        'pause = short.map_or(usual, |short| short.max(usual));' \
        remote_workers::a_stall_in_which_only_the_short_lease_of_a_worker_ends_costs_it_no_attempt
    mutant 'outage that a runner starts in' internal/engine/lib.rs \
        'if store.was_out() { HeartbeatHistory::after_an_outage() }' \
        'if false { HeartbeatHistory::after_an_outage() }' \
        leases::after_an_outage_no_runner_judges_another_before_a_lease_of_that_one
    mutant 'interruptions that a runner notices' internal/engine/reaper.rs \
        'shared.heartbeats.record_interruption(looked.elapsed());' \
        'let _ = looked;' \
        internal/engine/heartbeat_history.rs \
        'self.interrupt(now, pause);' \
        'let _ = pause;' \
        leases::after_an_outage_no_runner_judges_another_before_a_lease_of_that_one
    mutant 'last tick of a schedule that is changed' internal/store/schedules/mod.rs \
        'row.last_at.map_or(now, |last| last.max(now))' \
        'row.last_at.map_or(now, |_| now)' \
        clocks::a_schedule_whose_clock_was_set_back_ticks_no_moment_twice_and_goes_on_where_it_was
    mutant 'end of a page of the walk' internal/store/attempts/lease.rs \
        '.bind(end.unwrap_or(Uuid::max()))' \
        '.bind(Uuid::max())' \
        claims::no_loop_reads_the_owed_rows_as_a_whole
    mutant 'fence of a request for jobs' internal/store/attempts/claim.rs \
        'AND r.fetch_id = ? AND' \
        'AND ? IS NOT NULL AND' \
        remote_workers::a_claim_for_a_request_that_a_newer_one_has_replaced_starts_nothing
    mutant 'attempts that a request does not list' internal/broker/remote_workers.rs \
        'if !undelivered.is_empty() {
            self.give_back_undelivered(&worker, undelivered)' \
        'if false {
            self.give_back_undelivered(&worker, undelivered)' \
        remote_workers::a_job_that_the_next_request_does_not_list_is_given_back_at_once_whatever_process_it_goes_to
    mutant 'a request for jobs that is repeated' internal/store/attempts/remote.rs \
        'if fetch.is_some() && batch.fetch' \
        'if fetch.is_none() && batch.fetch' \
        remote_workers::the_same_request_again_gets_the_same_jobs_and_nothing_new_from_any_process
    mutant 'jobs whose client is gone' internal/broker/remote_workers.rs \
        'if self.delivered || self.claimed.is_empty() {' \
        'if self.delivered || !self.claimed.is_empty() {' \
        remote_workers::a_job_of_a_request_whose_client_is_gone_before_the_answer_is_given_back_at_once
    mutant 'expired attempts that their worker executes' internal/store/attempts/lease.rs \
        'Some(true) => return Ok(GiveBack::default()),' \
        'Some(true) => {}' \
        remote_workers::a_late_copy_of_a_request_takes_no_attempt_away_whose_job_has_expired_since_its_start \
        remote_workers::a_process_gives_nothing_back_that_another_one_has_handed_out_again
    mutant 'copy of a request that is older than a claim' internal/store/attempts/remote.rs \
        '&& !attempt.is_behind(fetch)' \
        '&& !attempt.is_behind(Uuid::nil())' \
        remote_workers::a_late_copy_of_a_request_that_no_process_has_seen_gives_nothing_back_that_was_claimed_since
    mutant 'versions of the ids of requests' internal/store/attempts/remote.rs \
        'request.get_version_num() == 7 && other.get_version_num() == 7' \
        'request.get_version_num() > 0 && other.get_version_num() > 0' \
        remote_workers::what_did_not_arrive_comes_back_with_the_next_request_if_an_id_tells_no_time
    mutant 'rest of an answer that is not listed' internal/store/attempts/remote.rs \
        '&& !incomplete.contains(&batch.id)' \
        '&& !incomplete.contains(&Uuid::nil())' \
        remote_workers::an_attempt_that_is_not_listed_beside_another_of_its_answer_did_not_arrive
    mutant 'jobs that never arrived' internal/store/attempts/remote.rs \
        'found.undelivered = by_token(unlisted);' \
        'drop(by_token(unlisted));' \
        remote_workers::a_job_that_never_arrived_comes_back_within_the_lease_of_a_worker_that_fetches_no_more
    mutant 'two thirds of a lease for what was never listed' internal/store/attempts/remote.rs \
        'lease * UNDELIVERED_AFTER / BEATS_PER_LEASE' \
        'lease * UNDELIVERED_AFTER / (BEATS_PER_LEASE + 1)' \
        remote_workers::an_attempt_that_was_never_listed_is_given_back_only_after_two_thirds_of_a_lease
    mutant 'old attempts in a repeated answer' internal/store/attempts/remote.rs \
        'attempt.age < found.lease / HANDED_OUT_WITHIN' \
        'attempt.age < found.lease * HANDED_OUT_WITHIN' \
        internal/api/workers.rs \
        'delivery.note_claim(begun.claimed_since,' \
        'delivery.note_claim(begun.claimed_since.max(came),' \
        remote_workers::a_repeated_request_hands_out_no_attempt_that_a_heartbeat_may_give_back
    mutant 'claim behind a repeated answer' internal/api/workers.rs \
        'delivery.note_claim(begun.claimed_since,' \
        'delivery.note_claim(begun.claimed_since.max(came),' \
        remote_workers::a_repeated_answer_is_as_old_as_the_first_claim_of_its_attempts
    mutant 'old attempts in an answer' internal/broker/remote_workers.rs \
        'if !self.claimed.iter().any(is_old) {' \
        'if !self.claimed.iter().any(is_old) || since.elapsed() >= within {' \
        remote_workers::an_answer_that_mysql_holds_up_for_a_quarter_of_a_lease_hands_nothing_out
    mutant 'first heartbeat after a silence' internal/store/attempts/remote.rs \
        '>= longest && missed_before' \
        '>= longest && (missed_before || missing >= longest)' \
        remote_workers::a_worker_that_stood_still_keeps_the_attempt_whose_answer_it_reads_beside_its_first_heartbeat \
        remote_workers::one_heartbeat_after_an_outage_gives_nothing_back_that_was_listed_before_it
    mutant 'time for which a heartbeat waited' internal/store/attempts/remote.rs \
        'missing.saturating_sub(waited)' \
        'missing.saturating_sub(waited * 0)' \
        remote_workers::a_heartbeat_that_waits_gives_nothing_back_that_was_young_when_it_came
    mutant 'wait of a heartbeat for the rights of its key' internal/api/workers.rs \
        'beat_of_worker(id.clone(), reports, came)' \
        'beat_of_worker(id.clone(), reports, came.max(Instant::now()))' \
        remote_workers::a_heartbeat_that_waits_for_the_rights_of_its_key_gives_nothing_back_that_was_young_when_it_came
    mutant 'permits of a remote worker' internal/engine/remote_workers.rs \
        'let limited = limited.map(|queue| (queue, may_judge));' \
        'let limited = limited.map(|queue| (queue, may_judge)).filter(|_| false);' \
        remote_workers::pauses_limits_and_order_keys_hold_for_remote_workers
    mutant 'bytes of an answer with jobs' internal/engine/remote_workers.rs \
        'sum <= MAX_ANSWER_BYTES' 'sum < usize::MAX' \
        remote_workers::large_jobs_reach_a_worker_in_answers_of_a_few_mebibytes
    mutant 'locked rows in a claim for a worker' internal/store/attempts/claim.rs \
        'self.remote.is_some() && earlier == PriorRun::Nothing' \
        'self.remote.is_some() && earlier == PriorRun::MayHaveCommitted' \
        remote_workers::a_row_that_another_session_locks_holds_up_no_other_job_and_no_heartbeat
    mutant 'locked rows in a heartbeat' internal/store/attempts/renewal.rs \
        'Err(error) if is_locked_elsewhere(&error) => caution.begin(),' \
        'Err(error) if is_locked_elsewhere(&error) && page.is_empty() => caution.begin(),' \
        store::a_row_that_another_session_locks_keeps_no_other_lease_from_being_renewed
    mutant 'heartbeat after one that left locked rows out in vain' internal/store/attempts/lease.rs \
        'Some(true) => self.caution.end(),' 'Some(true) => {}' \
        store::a_heartbeat_after_a_broken_line_needs_no_more_answers_than_before
    mutant 'heartbeat after a long wait in vain' internal/store/attempts/lease.rs \
        'Some(false) if patience < SURE_OF_LOCKS => self.caution.begin(),' \
        'Some(false) => self.caution.begin(),' \
        store::a_heartbeat_after_a_broken_line_needs_no_more_answers_than_before
    mutant 'locked row of a runner in its heartbeat' internal/store/attempts/lease.rs \
        'Err(error) if is_locked_elsewhere(&error) => caution.begin(),' \
        'Err(error) if is_locked_elsewhere(&error) && runner.as_str().is_empty() => caution.begin(),' \
        store::a_row_of_a_runner_that_another_session_locks_costs_it_no_lease
    mutant 'locked verdicts beside others' internal/broker/remote_workers.rs \
        'until = Instant::now() + VERDICT_PATIENCE;' \
        'until = Instant::now() + VERDICT_PATIENCE * 20;' \
        remote_workers::a_row_that_another_session_locks_costs_no_other_attempt_of_its_worker_its_lease_or_its_verdict
    mutant 'verdicts that go on without their caller' internal/broker/remote_workers.rs \
        'self.settle_apart(attempt, settlement).await' \
        'self.settle_remote(attempt, settlement).await' \
        remote_workers::a_verdict_that_is_written_after_its_answer_has_all_that_follows_it
    mutant 'locked rows among what did not arrive' internal/store/attempts/lease.rs \
        'let waits = of_worker.is_none();' \
        'let waits = of_worker.is_none() || !ids.is_empty();' \
        remote_workers::a_row_that_another_session_locks_delays_no_end_of_a_worker_and_no_job_that_did_not_arrive
    mutant 'locked rows of workers that leave' internal/broker/remote_workers.rs \
        'self.give_back_later(&worker, left, how);
        Ok(true)' \
        'for (token, ids) in left {
            let broker = self.clone();
            self.polls.tasks.spawn(async move { broker.store.give_back(token, ids, LEFT).await });
        }
        Ok(true)' \
        remote_workers::a_row_that_another_session_locks_delays_no_end_of_a_worker_and_no_job_that_did_not_arrive
    mutant 'checkpoints of a heartbeat that are not saved' internal/broker/remote_workers.rs \
        'left.iter().map(|new| (new.id, new.token)).collect()' \
        'left.iter().map(|new| (new.id, new.token)).take(0).collect()' \
        remote_workers::a_heartbeat_whose_checkpoint_mysql_refuses_renews_its_leases_and_says_so
    mutant 'turn of saving the checkpoints of heartbeats' internal/store/attempts/checkpoints.rs \
        'let Some(turn) = self.shared.save_turn.take().await else { return Ok(None) };' \
        'let turn = tokio::time::timeout(Duration::ZERO, self.shared.save_turn.take()).await;' \
        remote_workers::a_locked_table_of_checkpoints_holds_up_no_heartbeat_of_another_worker
    mutant 'unreadable row of a verdict beside others' internal/broker/remote_workers.rs \
        'Err(error) if may_wait(&error) => answered = true,' \
        'Err(error) if may_wait(&error) => refused = Some(error),' \
        remote_workers::a_row_that_cannot_be_read_costs_no_other_attempt_of_its_worker_its_beat_or_verdict
    mutant 'unreadable row among verdicts' internal/store/attempts/remote.rs \
        'Err(error) => all.unreadable.extend(open_attempt_in(row, &error)),' \
        'Err(error) => return Err(error),' \
        remote_workers::a_row_that_cannot_be_read_costs_no_other_attempt_of_its_worker_its_beat_or_verdict
    mutant 'unreadable row in a heartbeat' internal/store/attempts/remote.rs \
        'open_attempt_in(row, &error);
                    continue;' \
        'open_attempt_in(row, &error);
                    return Err(error);' \
        remote_workers::a_row_that_cannot_be_read_costs_no_other_attempt_of_its_worker_its_beat_or_verdict
    mutant 'unreadable row among checkpoints' internal/store/attempts/checkpoints.rs \
        'Err(error) if error.is_about_the_row() && page.len() > 1 => {}' \
        'Err(error) if error.is_about_the_row() && page.len() > 1_000 => {}' \
        remote_workers::a_row_that_cannot_be_read_costs_no_other_attempt_of_its_worker_its_beat_or_verdict
    mutant 'undone claims of jobs that expired on their way' internal/broker/remote_workers.rs \
        'why: EXPIRED, which: Returned::Undone' \
        'why: EXPIRED, which: Returned::Unreached' \
        remote_workers::a_job_that_expires_between_its_claim_and_the_answer_reaches_no_worker
    mutant 'queues of requests that wait' internal/api/http/awaited_queues.rs \
        'if with(all) > MOST {' \
        'if with(all) > MOST * 100 {' \
        remote_workers::requests_for_more_queues_than_a_process_serves_are_told_to_come_back
    mutant 'wait of a request for jobs that is refused' internal/store/attempts/remote.rs \
        'SET polls_until = NULL WHERE id = ? AND fetch_id = ?' \
        'SET polls_until = polls_until WHERE id = ? AND fetch_id = ?' \
        remote_workers::requests_for_more_queues_than_a_process_serves_are_told_to_come_back
    mutant 'locked row of a worker that is gone' internal/store/attempts/lease.rs \
        'SELECT id FROM runners WHERE id = ? FOR UPDATE{SKIP_LOCKED}' \
        'SELECT id FROM runners WHERE id = ? FOR UPDATE' \
        remote_workers::a_locked_row_of_a_worker_that_is_gone_delays_no_lost_attempt_of_another
    mutant 'locked batch of a worker that is over' internal/store/attempts/remote.rs \
        'AND id IN {list} FOR UPDATE{SKIP_LOCKED}' \
        'AND id IN {list}' \
        remote_workers::a_batch_that_is_over_and_that_another_session_locks_delays_no_heartbeat
    mutant 'growing delay of jobs that never arrive' internal/store/attempts/settle.rs \
        'Again::NowOrLater(chance) if spared_now >= MAX_SPARED' \
        'Again::NowOrLater(chance) if spared_now >= MAX_SPARED * 1_000' \
        remote_workers::a_job_that_never_arrives_comes_back_later_each_time_and_uses_no_attempt
    mutant 'last number of an attempt in a claim' internal/store/attempts/claim.rs \
        'AND {NOT_EXPIRED} AND attempt < {MAX_NUMBER} AND kind IN' \
        'AND {NOT_EXPIRED} AND attempt <= {MAX_NUMBER} AND kind IN' \
        internal/engine/remote_workers.rs \
        'Err(error) if error.is_about_the_row() => {}' \
        'Err(error) if error.is_about_the_row() && jobs.is_empty() => {}' \
        remote_workers::a_job_at_the_last_number_of_an_attempt_keeps_no_other_job_from_its_worker
    mutant 'error of a verdict that is repeated' internal/store/attempts/settle.rs \
        'is_ours && error == item.error.as_deref()' 'is_ours && (error == item.error.as_deref() || true)' \
        push_kinds::a_finish_is_refused_when_the_process_has_ended_the_attempt_with_the_same_word \
        remote_workers::a_job_that_the_next_request_does_not_list_is_given_back_at_once_whatever_process_it_goes_to
    mutant 'attempts of others under a made-up token' internal/broker/remote_workers.rs \
        '|| may(&attempt.kind, &attempt.queue)' \
        '|| may(&attempt.kind, &attempt.queue) || attempt.open.is_none()' \
        remote_workers::a_key_that_is_limited_to_kinds_and_queues_works_on_nothing_else
    mutant 'queues in which a kind is served' internal/engine/lib.rs \
        'let here = self.settings.workers > 0 && self.settings.queues.contains(queue);' \
        'let here = self.settings.workers > 0;' \
        remote_workers::a_job_whose_kind_no_runner_of_its_queue_has_is_looked_at_every_few_seconds
    mutant 'locked batch of a runner that is over' internal/store/attempts/claim_batches.rs \
        'ORDER BY runner, id FOR UPDATE{SKIP_LOCKED}' \
        'ORDER BY runner, id FOR UPDATE' \
        leases::a_finished_batch_that_another_session_locks_delays_no_lost_attempt
    mutant 'runners of a queue among many' internal/store/runners.rs \
        'AND (parent IS NOT NULL OR INSTR(queues, ?) > 0)' \
        'AND (parent IS NOT NULL OR INSTR(queues, ?) >= 0)' \
        remote_workers::a_worker_of_a_queue_is_seen_behind_more_workers_of_others_than_are_listed
    mutant 'first version of a declared kind' internal/store/kinds.rs \
        'rand::random_range(1..=MAX_FIRST_VERSION)' 'MAX_FIRST_VERSION.min(1)' \
        declared_kinds::the_version_of_a_removed_declaration_changes_none_that_has_its_name
    mutant 'locked queue of a claim for a worker' internal/store/attempts/remote.rs \
        'QUEUE_PATIENCE: Duration = Duration::from_millis(300)' \
        'QUEUE_PATIENCE: Duration = Duration::from_secs(300)' \
        remote_workers::a_queue_that_another_session_locks_holds_up_no_other_queue_of_workers
    mutant 'permits that a worker has left' internal/store/attempts/permits.rs \
        'if granted < asked.wanted && ' \
        'if granted > asked.wanted && ' \
        remote_workers::a_permit_that_a_living_worker_does_not_use_is_free_for_others
    mutant 'claims at a limit whose answer was lost' internal/store/attempts/remote.rs \
        'if earlier == PriorRun::MayHaveCommitted
                        && ' \
        'if earlier != earlier
                        && ' \
        remote_workers::a_claim_at_the_limit_of_a_queue_whose_answer_is_lost_is_delivered_all_the_same
    mutant 'suspects of remote workers' internal/api/workers.rs \
        'if drained || begun.holds_suspect || begun.repeated {' \
        'if drained || begun.repeated {' \
        remote_workers::a_suspect_is_handed_to_a_worker_that_holds_nothing_and_alone
    mutant 'worker set aside for a suspect' internal/engine/remote_workers.rs \
        'Aside::NoWorker) || self.shared.stop_fetching.is_cancelled() {' \
        'Aside::NoWorker) || !self.shared.stop_fetching.is_cancelled() {' \
        remote_workers::a_suspect_gets_a_worker_to_itself_while_all_workers_have_jobs
    mutant 'worker set aside between two requests' internal/engine/remote_workers.rs \
        'if !tried && is_over && now < aside.until' \
        'if !tried && !is_over && now < aside.until' \
        remote_workers::a_suspect_gets_a_worker_to_itself_also_when_requests_are_shorter_than_jobs
    mutant 'next request for a suspect' internal/engine/remote_workers.rs \
        'self.aside = Aside::Between(SetAside { worker: None, job, until: Instant::now() + SUSPECT_PAUSE });' \
        'self.put_off(job);' \
        remote_workers::a_suspect_gets_a_worker_to_itself_also_when_every_request_takes_several_jobs
    mutant 'place of a suspect that was put off' internal/engine/remote_workers.rs \
        '|(until, _)| *until <= now' \
        '|(until, _)| *until > *until' \
        remote_workers::a_suspect_that_was_put_off_is_tried_again_before_the_jobs_behind_it
    mutant 'rest of suspects while Redis is out' internal/engine/remote_workers.rs \
        ' && !self.is_resting(row.id)' \
        '' \
        remote_workers::a_suspect_for_which_no_worker_is_free_costs_few_claims_while_redis_is_out
    mutant 'front of a lane without jobs for remote workers' internal/engine/remote_workers.rs \
        'front.skipped.go_on(after);' 'front.skipped.go_on(DueCursor::FRONT);' \
        remote_workers::while_redis_is_out_a_worker_gets_its_jobs_behind_any_number_of_jobs_of_another_kind
    mutant 'shortest wait of a worker' internal/broker/remote_workers.rs \
        'wait.max(SHORTEST_WAIT)' \
        'wait' \
        remote_workers::a_request_that_does_not_wait_gets_the_jobs_that_are_due
    mutant 'kinds and queues of a key that works' internal/api/workers.rs \
        'rights.check(&worker.kinds, &worker.queues)?;' \
        'let _ = rights.check(&worker.kinds, &worker.queues);' \
        remote_workers::a_key_that_is_limited_to_kinds_and_queues_works_on_nothing_else
    mutant 'workers of other keys' internal/api/workers.rs \
        'if rights.are_unlimited() {' \
        'if rights.are_unlimited() || !id.as_str().is_empty() {' \
        remote_workers::a_key_that_is_limited_to_kinds_and_queues_works_on_nothing_else
    mutant 'queues of a key that enqueues' internal/api/jobs/mod.rs \
        'if !asker.has_queues() {' \
        'if !asker.has_queues() || prefix.is_empty() {' \
        remote_workers::a_key_that_is_limited_to_queues_enqueues_nowhere_else
    mutant 'time limit of a remote attempt' internal/broker/remote_workers.rs \
        'if over < TIMEOUT_GRACE {' \
        'if over < TIMEOUT_GRACE * 100 {' \
        remote_workers::a_beat_keeps_the_lease_and_brings_cancels_and_time_limits
    mutant 'attempts of one job in a heartbeat' internal/store/attempts/renewal.rs \
        '_ => beat.lost.push((attempt.id, attempt.token)),' \
        '_ => beat.lost.push((attempt.id, held.get(&attempt.id).map_or(attempt.token, |(token, _)| AttemptToken::from_uuid(*token)))),' \
        remote_workers::a_beat_that_lists_two_attempts_of_one_job_takes_the_earlier_one_alone_for_lost
    mutant 'options that a job keeps of its declared kind' internal/broker/draft.rs \
        'of_kind: kind.kept_options(),' \
        'of_kind: kind.kept_options().filter(|_| false),' \
        remote_workers::a_job_keeps_the_time_limit_and_the_backoff_of_a_declaration_that_is_changed_or_deleted
    mutant 'declaration of a replay' internal/broker/lib.rs \
        'of_kind: job.options.of_kind, ..original' \
        '..original' \
        remote_workers::a_job_keeps_the_time_limit_and_the_backoff_of_a_declaration_that_is_changed_or_deleted
    mutant 'former declaration in a replay' internal/broker/lib.rs \
        'job.options.of_kind = None;' 'job.options.of_kind = job.options.of_kind.take();' \
        operations::a_replay_of_a_kind_that_only_another_runner_has_leaves_no_dead_letter
    mutant 'steps ahead in the age of a remote attempt' internal/engine/heartbeat_history.rs \
        'moment <= step.until' \
        'moment > step.until' \
        clocks::a_clock_of_mysql_that_is_set_ahead_ends_no_attempt_of_a_remote_worker_that_began_before
    mutant 'jobs of a worker that leaves' internal/broker/remote_workers.rs \
        'let left = self.give_back(&worker, attempts, how).await;' \
        'drop(attempts);
        let left = Vec::new();' \
        remote_workers::a_worker_that_leaves_gives_its_jobs_back_and_uses_no_attempt
    mutant 'waits at the stop of a process' internal/engine/remote_workers.rs \
        'for poll in std::mem::take(&mut self.waiting) {
            self.answer(poll, false);' \
        'for poll in std::mem::take(&mut self.waiting) {
            drop(poll);' \
        remote_workers::the_stop_of_a_process_interrupts_no_job_of_a_worker_and_ends_its_wait_at_once
    mutant 'drain of a waiting worker' internal/engine/remote_workers.rs \
        '== Some(&Some(poll.fetch.id));
                let (waiting' \
        '!= None;
                let (waiting' \
        remote_workers::a_drained_worker_gets_no_job_and_keeps_those_that_it_has
    mutant 'scope of remote workers' internal/api/http/auth.rs \
        'Self::Work => matches!(scope, Scope::Work | Scope::Admin),' \
        'Self::Work => true,' \
        remote_workers::a_key_with_the_scope_work_may_work_and_nothing_else
    mutant 'schema of a declared kind' internal/handlers/registry.rs \
        'let schema = kind.schema.clone().unwrap_or_else(|| Value::Object(serde_json::Map::new()));' \
        'let schema = Value::Object(serde_json::Map::new());' \
        declared_kinds::a_declared_kind_is_accepted_by_every_runner_and_checked_by_its_schema
    mutant 'kinds of other runners in a declaration' internal/store/kinds.rs \
        'if is_compiled(conn, &kind.name).await? {' \
        'if false {' \
        declared_kinds::a_kind_of_which_a_living_runner_has_a_handler_cannot_be_declared
    mutant 'look whether the master was replaced' internal/engine/reconciler.rs \
        'shared.index.follow_master().await;' '' \
        redis_sentinel::a_master_that_was_replaced_and_still_answers_is_left_within_seconds
    mutant 'stream of events on the new master' internal/index/event_stream.rs \
        '!self.shared.servers.has_left(server)' 'true' \
        redis_sentinel::a_master_that_was_replaced_and_still_answers_is_left_within_seconds
    mutant 'nodes learned from a cluster' internal/index/cluster.rs \
        'self.learn(&view.nodes)?;' '' \
        redis_cluster::a_lost_master_of_the_slot_is_replaced_by_its_replica_and_costs_no_job
    mutant 'rights before the first use of Redis' internal/index/link.rs \
        'trusted: None }' 'trusted: Some(0) }' \
        redis_access::each_right_of_the_rule_is_needed_and_named
    mutant 'rights again after a refusal' internal/index/health.rs \
        'condition.refusals += u64::from(error.is_about_rights());' '' \
        redis_access::a_missing_right_is_named_and_costs_no_job
    mutant 'authorities of Redis in place of the public ones' internal/index/servers.rs \
        'let root_cert = read("redis_ca_file", &tls.ca_file, "CERTIFICATE")?;' 'let root_cert = None;' \
        redis_access::tls_with_an_own_authority_checks_both_sides
    mutant 'end of the waits in the other partitions' internal/index/fetch.rs \
        'if !ending && (nudged || !popped.is_empty()) {' 'if false && !ending && (nudged || !popped.is_empty()) {' \
        index_partitions::a_job_of_any_partition_starts_at_once_on_an_idle_runner
    mutant 'order of lanes over partitions' internal/index/fetch.rs \
        'let mut shares = Vec::new();
    for (place, group) in order.lines.iter().zip(&order.groups) {' 'let mut shares = Vec::new();
    for (place, group) in order.lines.iter().zip(&order.groups).rev() {' \
        index_partitions::urgent_jobs_of_all_partitions_start_before_others
    mutant 'time of the signature of a callback' internal/handlers/http/mod.rs \
        'ctx.now().timestamp()' 'chrono::Utc::now().timestamp()' \
        clocks::a_runner_two_hours_off_signs_callbacks_at_the_time_of_mysql
    mutant 'time of the signature of a push' internal/handlers/http/push.rs \
        'ctx.now().timestamp()' 'Utc::now().timestamp()' \
        clocks::a_runner_two_hours_off_signs_callbacks_at_the_time_of_mysql
    mutant 'push whose answer is lost' internal/handlers/http/push.rs \
        'Failure::Retry { error } if lost =>' 'Failure::Retry { error } if lost && error.is_empty() =>' \
        push_kinds::a_call_whose_answer_is_lost_is_repeated_with_the_same_token_and_uses_no_attempt
    mutant 'object of a pushed verdict' internal/handlers/http/push.rs \
        'if !body.trim_ascii_start().starts_with(b"{") {' \
        'if body.is_empty() {' \
        push_kinds::every_answer_of_a_receiver_has_its_consequence
    mutant 'end of a pushed verdict' internal/handlers/http/push.rs \
        'reader.end().map_err(|_| useless("something follows the verdict"))?;' \
        'let _ = reader.end();' \
        push_kinds::every_answer_of_a_receiver_has_its_consequence
    mutant 'address of a receiver when it is called' internal/handlers/http/push.rs \
        'check::url(&self.push.url, &self.http.rule)' 'check::url("https://example.com/", &self.http.rule)' \
        push_kinds::a_receiver_at_a_private_address_is_refused_unless_it_is_allowed
    mutant 'address of a receiver when it is declared' internal/api/kinds.rs \
        '} else if let Some(problem) = problem {' '} else if let Some(problem) = problem.filter(String::is_empty) {' \
        push_kinds::a_receiver_at_a_private_address_is_refused_unless_it_is_allowed
    mutant 'sample secret of a receiver' internal/api/kinds.rs \
        'is_some_and(SigningSecret::is_published)' 'is_some_and(str::is_empty)' \
        push_kinds::a_declaration_with_the_secret_of_the_published_examples_is_refused
    mutant 'lease of a receiver' internal/handlers/http/push.rs \
        'report_within: self.push.lease' 'report_within: None' \
        push_kinds::a_receiver_that_never_finishes_is_called_again_at_its_lease_and_its_late_finish_is_refused
    mutant 'lease of a receiver during its call' internal/handlers/http/push.rs \
        'self.push.lease.map(|lease| lease.max(answer_within + WRITTEN_WITHIN))' 'self.push.lease' \
        push_kinds::a_report_during_a_call_ends_no_attempt_before_its_answer
    mutant 'patience before a finish key is stored' internal/engine/deferred.rs \
        'if error.is_transient() && !self.stop.is_cancelled() => {' \
        'if error.is_transient() && digest.is_empty() => {' \
        push_kinds::a_mysql_that_goes_away_before_the_call_uses_no_attempt \
        deferred::a_mysql_that_goes_away_before_a_callback_uses_no_attempt
    mutant 'problems of calls with a finish key' internal/api/http/auth.rs \
        'add_problems(operation, &OF_FINISH_KEYS);' 'add_problems(operation, &[]);' \
        deferred::calls_with_a_finish_key_that_fail_have_documented_answers
    mutant 'report before the answer of a receiver' internal/handlers/http/push.rs \
        'ctx.finish_key_for(later).await?' 'ctx.finish_key().await?' \
        push_kinds::a_receiver_that_reports_keeps_an_attempt_whose_process_died_before_it_answered
    mutant 'token in what a receiver says' internal/handlers/http/push.rs \
        'hidden.push(token.to_owned());' 'hidden.push(target.to_owned());' \
        push_kinds::the_token_of_an_attempt_is_not_stored_when_the_receiver_sends_it_back
    mutant 'kinds with a receiver that are new' internal/engine/kinds.rs \
        'if kinds != claimed {' 'if kinds != claimed && kinds.is_empty() {' \
        push_kinds::a_kind_gets_a_receiver_changes_it_and_loses_it_while_runners_live
    mutant 'kinds with a receiver that are declared again' internal/store/kinds.rs \
        'has_kind && editions.is_none_or(' 'has_kind || editions.is_some_and(' \
        push_kinds::a_kind_gets_a_receiver_changes_it_and_loses_it_while_runners_live
    mutant 'workers of a kind with a receiver' internal/api/workers.rs \
        'Some(KnownKind::Declared(kind)) if kind.runs_here() => {' \
        'Some(KnownKind::Declared(kind)) if kind.runs_here() && kinds.is_empty() => {' \
        push_kinds::a_kind_gets_a_receiver_changes_it_and_loses_it_while_runners_live
    mutant 'answer with a new API key while MySQL fails' internal/api/api_keys.rs \
        'if let Err(error) = api.operator_settings.refresh().await {' \
        'api.operator_settings.refresh().await?; if let Err(error) = api.operator_settings.refresh().await {' \
        api_keys::the_secret_of_an_api_key_is_shown_also_when_mysql_fails_after_it_was_made
    mutant 'problems and ids of pages' internal/app/mod.rs \
        '.merge(api::beside_the_api(pages()));' '.merge(pages());' \
        problems::pages_have_ids_and_problems_as_the_api_has
    mutant 'moments in cursors' \
        'internal/api/schedules/ticks.rs internal/api/dead_letters.rs internal/api/outbox.rs' \
        'and_then(tickr_job::query::storable)?' 'and_then(Some)?' \
        api::a_cursor_whose_moment_a_client_changed_is_refused
    mutant 'depth of a report or verdict instead of its call' internal/api/http/body.rs \
        'read_json(request, api, limit, None, parse_of_any_depth)' 'read_json(request, api, limit, None, parse)' \
        remote_workers::a_report_that_is_not_valid_costs_no_lease_and_the_largest_result_arrives \
        remote_workers::a_verdict_that_is_not_valid_is_refused_alone
    mutant 'front of a ready list for an older job of a limit' internal/broker/lib.rs \
        'self.lane_times.goes_first(&job.queue, job.priority, job.execute_at)' 'job.queue.as_str().is_empty()' \
        key_limits::parked_jobs_start_before_the_jobs_of_their_queue_that_were_due_later
    mutant 'share of a fair limit after a start' internal/engine/limits.rs \
        'summary.limits_in_use || shared.store.lacks_shares()' 'summary.limits_in_use' \
        key_limits::a_fair_limit_holds_after_a_restart_of_the_only_runner
    mutant 'place in the line of a job that lost its slot' internal/store/attempts/limited.rs \
        'held_due_at.map_or_else(|| row.try_get("execute_at"), Ok)?' 'row.try_get("execute_at")?' \
        key_limits::a_job_of_a_rate_keeps_its_place_in_the_line_when_the_slot_that_was_kept_for_it_is_lost
    mutant 'slots of attempts that a changed limit does not cover' internal/store/attempts/limited.rs \
        '!self.let_uncovered_go(set, gone).await? || !self.free_uncovered_slots(set).await?' \
        '!self.let_uncovered_go(set, gone).await?' \
        key_limits::running_jobs_that_a_changed_limit_does_not_cover_any_more_keep_no_slot_of_it
    mutant 'end of a batch before its cancel' internal/engine/batches.rs \
        'if shared.store.finish_batch_cancel(batch).await? {' 'if false {' \
        internal/store/batches/cancel.rs \
        'AND EXISTS (SELECT 1 FROM batches WHERE id = ? AND completed_at IS NULL) ORDER BY b.job_id LIMIT ?' \
        'AND EXISTS (SELECT 1 FROM batches WHERE id = ?) ORDER BY b.job_id LIMIT ?' \
        internal/store/batches/cancel.rs 'let sql = "SELECT 1 FROM batches WHERE id = ? AND completed_at IS NULL";' \
        'let sql = "SELECT 1 FROM batches WHERE id = ?";' \
        batches::a_job_that_is_retried_in_a_cancelled_batch_is_not_cancelled_again
    mutant 'look at more batches at once' internal/engine/batches.rs \
        'next = *counted.as_ref().unwrap_or(&NextLook::AfterChanges);' 'next = NextLook::AfterChanges;' \
        batches::many_small_batches_that_end_together_are_counted_without_a_rest_between_looks
    mutant 'one callback for the first failure of a batch' internal/store/batches/count.rs \
        'if batch.failed_at.is_none() && (any_failed || counts.failed > 0) {' 'if any_failed || counts.failed > 0 {' \
        batches::a_second_failure_and_a_second_end_start_no_second_callback
    mutant 'one callback for the end of a batch' internal/store/batches/count.rs \
        'let ended = all_ended && batch.completed_at.is_none();' 'let ended = all_ended;' \
        batches::a_second_failure_and_a_second_end_start_no_second_callback \
        batches::failures_are_told_once_and_a_retry_of_the_batch_leads_to_success
    mutant 'lock of a batch that is counted' internal/store/batches/count.rs \
        'WHERE id = ? FOR UPDATE{}", if waits { "" } else { SKIP_LOCKED }' \
        'WHERE id = ?{}", if waits { "" } else { &SKIP_LOCKED[..0] }' \
        store::two_runners_that_count_a_batch_at_once_lose_no_change_of_it \
        store::a_batch_that_another_runner_counts_is_left_without_a_wait
    mutant 'batches that another runner counts' internal/store/batches/count.rs \
        'if waits { "" } else { SKIP_LOCKED }' 'if waits { SKIP_LOCKED } else { "" }' \
        store::a_batch_that_another_runner_counts_is_left_without_a_wait
    mutant 'changes of a locked batch' internal/store/batches/count.rs \
        'row.is_none() && !waits && exists(conn, id).await?' 'row.is_none() && !waits && exists(conn, id).await? && false' \
        store::a_batch_that_another_runner_counts_is_left_without_a_wait
    mutant 'parent in the error of a cancelled child' internal/store/jobs/actions.rs \
        'closing_line(*id, owed, now, errors.get(id).map(String::as_str))' 'closing_line(*id, owed, now, None)' \
        store::children_of_a_parent_that_did_not_complete_are_cancelled_also_when_mysql_answers_slowly
    mutant 'unique keys of jobs that are cancelled together' internal/store/jobs/actions.rs \
        'release_keys_of(conn, &keyed).await?;' '' \
        store::children_of_a_parent_that_did_not_complete_are_cancelled_also_when_mysql_answers_slowly
    mutant 'walk over the new children of a failed parent' internal/store/rows/links.rs \
        'told.entry(*parent).or_insert(before);' 'told.entry(*parent).or_insert(Uuid::nil());' \
        store::children_that_are_added_to_a_failed_parent_are_told_without_a_look_at_its_other_ones
    mutant 'rows of a parent that one walk replaces' internal/store/jobs/dependencies.rs \
        'delete_rows(conn, &replaced).await?;' '' \
        store::children_that_are_added_to_a_failed_parent_are_told_without_a_look_at_its_other_ones
    mutant 'changes behind a full look' internal/store/batches/count.rs \
        'found.len() as u32 > CHANGES' 'found.len() as u32 >= CHANGES' \
        store::a_batch_whose_last_changes_fill_one_look_ends_with_that_look
    mutant 'count of an outer batch at once' internal/store/batches/count.rs \
        'is_some_and(|counted| counted.outer_changed)' 'is_none()' \
        store::the_end_of_a_nested_batch_wakes_the_count_of_its_outer_batch
    mutant 'end of a batch at the moment of its cancel' internal/store/batches/cancel.rs \
        'if ended && !(cancelled' 'if ended && id.uuid().is_nil() && !(cancelled' \
        batches::a_cancel_of_a_batch_that_ends_at_this_moment_answers_409
    mutant 'time of the marks of nested batches' internal/store/batches/cancel.rs \
        'while !stop.is_cancelled() {' 'loop {' \
        batches::a_cancel_whose_time_is_up_while_it_marks_nested_batches_is_finished_by_a_runner
    mutant 'cancels beside the counts of batches' internal/engine/lib.rs \
        'keep_running(&looping, &shared, "cancels of batches", batches::finish_cancels_until_stopped);' '' \
        internal/engine/batches.rs 'let counted = count(&shared, &mut set_aside).await;' \
        'let _ = finish_cancels(&shared).await; let counted = count(&shared, &mut set_aside).await;' \
        batches::a_cancel_that_waits_for_a_lock_holds_up_the_count_of_no_batch
    mutant 'time of one batch of an operation' internal/store/bulk.rs \
        'const ENOUGH: Duration = Duration::from_secs(2);' 'const ENOUGH: Duration = Duration::from_secs(600);' \
        operations::a_batch_of_an_operation_commits_what_is_done_in_time_while_mysql_answers_slowly
    mutant 'ended jobs in the counts of a batch' internal/store/verify/links.rs \
        'members.misses(failed, others)' 'members.misses(failed + 9, others + 9)' \
        verify::a_seeded_fault_lights_its_check
    mutant 'failed jobs of a batch that succeeded' internal/store/verify/links.rs \
        '(failed != 0 || counts.cancelled != 0)' '(failed > 9 || counts.cancelled > 9)' \
        verify::a_seeded_fault_lights_its_check
    mutant 'time of the rows that are moved one by one' internal/broker/outbox.rs \
        'const KEYED_TIME: Duration = Duration::from_millis(50);' 'const KEYED_TIME: Duration = Duration::from_secs(600);' \
        outbox::a_row_starts_while_thousands_of_rows_of_a_batch_in_front_of_it_are_moved_and_orders_hold
    mutant 'objects in the options of a row' internal/broker/outbox.rs \
        'let Object(options): Object<RowOptions> = match' 'let options: RowOptions = match' \
        internal/broker/outbox.rs 'None => Object(RowOptions::default()),' 'None => RowOptions::default(),' \
        outbox::a_row_whose_options_are_an_array_is_rejected
    mutant 'bad rows of a page together' internal/store/outbox/rejected.rs \
        'for rows in groups_by_bytes(rows, |(_, reason)| ROW_BYTES + 2 * reason.len().min(limits::MAX_ERROR_BYTES)) {' \
        'for rows in rows.chunks(1) {' \
        outbox::a_page_of_bad_rows_is_rejected_in_time_however_late_each_answer_is
    mutant 'bytes of bad rows in a page' internal/store/outbox/heads.rs \
        'self.bytes > BYTES && self.last.is_some();' 'self.bytes > BYTES && !self.small.is_empty();' \
        outbox::rows_that_are_too_large_are_rejected_a_few_at_a_time
    mutant 'rows that a page locks at first' internal/store/outbox/heads.rs \
        '(Heads::default(), FIRST_ROWS);' '(Heads::default(), ROWS);' \
        outbox::a_page_of_large_rows_locks_few_of_those_that_it_does_not_take
    mutant 'age of a replayed row' internal/store/outbox/rejected.rs \
        'SELECT {COLUMNS}, UTC_TIMESTAMP(6)' 'SELECT {COLUMNS}, NULL' \
        outbox::a_replayed_row_is_left_to_a_living_runner_of_another_version
    mutant 'due time of a row in a transaction' internal/client/options.rs \
        'self.execute_at.map(ceil_ms)' 'self.execute_at' \
        outbox::a_due_time_finer_than_a_millisecond_is_rounded_up_in_a_row
    mutant 'due time of a copied row' internal/store/outbox/source_rows.rs \
        '.map(ceil_ms)' '' \
        outbox_sources::a_due_time_finer_than_a_millisecond_is_rounded_up_by_the_copy
    mutant 'rows that a page of a source looks at' internal/store/outbox/source.rs \
        'let most = looks_at + known.len();' 'let most = ROWS + known.len();' \
        outbox_sources::a_source_with_large_rows_is_read_a_little_at_a_time
    mutant 'page of a source after a failure' internal/store/outbox/source.rs \
        'let looks_at = std::mem::replace(&mut self.looks_at, 1);' 'let looks_at = self.looks_at;' \
        outbox_sources::after_a_failure_the_next_page_of_a_source_has_one_row
    mutant 'lease while a source answers' internal/engine/outbox_sources.rs \
        'timeout(RENEW_EVERY, &mut page)' 'timeout(RENEW_EVERY * 100, &mut page)' \
        outbox_sources::a_runner_keeps_a_source_whose_answer_takes_longer_than_its_lease
    mutant 'nudges while a source answers' internal/store/outbox/copies.rs \
        'calm_until = GREATEST(calm_until, lease_until)' 'calm_until = calm_until' \
        outbox_sources::a_runner_keeps_a_source_whose_answer_takes_longer_than_its_lease
    mutant 'depth of a result of a remote worker' internal/handlers/verdict.rs \
        'json.as_deref().and_then(wrong_json) {' \
        'json.as_deref().and_then(wrong_json).filter(|_| self.delay_ms.is_some()) {' \
        remote_workers::a_verdict_that_is_not_valid_is_refused_alone \
        push_kinds::a_verdict_that_is_nested_too_deep_is_not_usable_whatever_is_around_it
    mutant 'depth of a result that comes later' internal/api/attempts.rs \
        'wrong(pointer, detail);' 'let _ = (pointer, detail);' \
        push_kinds::a_verdict_that_is_nested_too_deep_is_not_usable_whatever_is_around_it
    mutant 'slot of an attempt that is finished later' internal/broker/deferred.rs \
        'settle_and_free(settlement, Arc::clone(&attempt.slots))' 'settle(settlement)' \
        push_kinds::a_finish_through_the_api_frees_the_slot_of_its_job_for_the_next_one
    mutant 'time of a deferred attempt that has ended' internal/store/attempts/settle.rs \
        'step.owed.links & DEFERRED != 0' 'step.owed.links & DEFERRED == u8::MAX' \
        deferred::an_attempt_that_has_ended_counts_as_one_of_another_system_no_more \
        push_kinds::an_attempt_that_was_reported_on_before_its_answer_is_forgotten_with_its_verdict
    mutant 'attempts that a worker held when it left' internal/store/attempts/lease.rs \
        'if left.contains(owed.runner.as_str()) {' 'if left.contains("") {' \
        remote_workers::what_a_worker_that_left_still_held_comes_back_unused_also_when_the_process_that_it_told_dies
    mutant 'lease of a worker that left' internal/engine/reaper.rs \
        'LapseRule::all(at)' 'LapseRule::at(at)' \
        remote_workers::what_a_worker_that_left_still_held_comes_back_unused_also_when_the_process_that_it_told_dies
    mutant 'kinds and queues of a worker that left' internal/store/attempts/remote.rs \
        'SELECT kinds, queues FROM runners WHERE id = ?' \
        'SELECT kinds, queues FROM runners WHERE stopped_at IS NULL AND id = ?' \
        remote_workers::a_repeated_leave_has_the_same_answer_for_a_key_with_and_without_limits
    mutant 'what another process told a worker' internal/broker/remote_workers.rs \
        'before.max(over.saturating_sub(lease))' 'before.min(Duration::ZERO)' \
        remote_workers::the_time_limit_of_an_attempt_ends_it_ten_seconds_after_any_process_told_its_worker
    mutant 'checkpoint that is null' internal/handlers/verdict.rs \
        'Box::<RawValue>::deserialize(deserializer).map(Some)' \
        'Option::<Box<RawValue>>::deserialize(deserializer)' \
        remote_workers::a_checkpoint_that_is_null_replaces_the_one_before
    mutant 'verdict that is refused alone' internal/api/workers.rs \
        'Err(answered) => given.push(Err(answered)),' \
        'Err(answered) => return Err(Problem::new(Code::InvalidRequest, answered.token)),' \
        remote_workers::a_verdict_that_is_not_valid_is_refused_alone
    mutant 'right to enqueue what follows a success' internal/api/http/follow_ups.rs \
        'if !holder.may_enqueue() {' \
        'if !holder.may_enqueue() && api.held {' \
        remote_workers::jobs_that_follow_need_a_key_that_may_enqueue_each_of_them \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'kinds of a key and what follows a success' internal/api/http/follow_ups.rs \
        'requester.problem_of_kind(&job.kind, &job.payload)' \
        'requester.problem_of_kind(&job.kind, &job.payload).filter(|_| queue.is_empty())' \
        remote_workers::jobs_that_follow_need_a_key_that_may_enqueue_each_of_them \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'queues of a key and what follows a success' internal/api/http/follow_ups.rs \
        'requester.problem_of_queue(&queue)' \
        'requester.problem_of_queue(&queue).filter(|_| queue.is_empty())' \
        remote_workers::jobs_that_follow_need_a_key_that_may_enqueue_each_of_them
    mutant 'finish key beside what follows' internal/api/attempts.rs \
        'let refused = if follow_ups.iter().all(|job| is_declared(&job.kind)) {' \
        'let refused = if follow_ups.len() < 9 || follow_ups.iter().all(|job| is_declared(&job.kind)) {' \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'kinds that a receiver may enqueue' internal/handlers/http/push.rs \
        '!may_follow.iter().any(|kind| kind.as_str() == job.kind)' \
        'may_follow.is_empty() && job.kind.is_empty()' \
        push_kinds::jobs_follow_the_answer_of_a_receiver_if_its_declaration_names_their_kinds
    mutant 'kinds that a receiver may enqueue later' internal/api/attempts.rs \
        'declared.iter().any(|name| name.as_str() == kind)' \
        'declared.iter().any(|name| name.as_str() != kind.repeat(9))' \
        push_kinds::jobs_follow_the_answer_of_a_receiver_if_its_declaration_names_their_kinds
    mutant 'check of what follows the success of a worker' internal/broker/remote_workers.rs \
        'Err(problems) => return Ok(WorkerFinished::Refused(problems)),' \
        'Err(_) => Vec::new(),' \
        remote_workers::a_follow_up_job_that_is_not_valid_refuses_its_verdict_alone_and_says_which
    mutant 'check of what follows a later finish' internal/broker/deferred.rs \
        'Err(problems) => return Ok(Finished::Refused(problems)),' \
        'Err(_) => Vec::new(),' \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'batch and trace of what follows the success of a worker' internal/broker/remote_workers.rs \
        'finish.follow_ups, attempt.batch, attempt.trace.as_ref())' \
        'finish.follow_ups, None, None)' \
        remote_workers::jobs_that_follow_a_success_are_in_its_batch_and_continue_its_trace
    mutant 'number of jobs that follow the success of a worker' internal/handlers/sent_follow_ups.rs \
        'if sent.len() > limits::MAX_FOLLOW_UPS {' \
        'if sent.len() > 10 * limits::MAX_FOLLOW_UPS {' \
        remote_workers::a_success_has_at_most_a_thousand_follow_up_jobs_and_a_call_four_thousand
    mutant 'number of jobs that follow the verdicts of one call' internal/api/workers.rs \
        '*jobs + own > MAX_FOLLOW_UPS_IN_CALL' \
        '*jobs + own > 9 * MAX_FOLLOW_UPS_IN_CALL' \
        remote_workers::a_success_has_at_most_a_thousand_follow_up_jobs_and_a_call_four_thousand
    mutant 'first verdict with jobs of one call' internal/api/workers.rs \
        'if own > 0 && *jobs > 0 &&' \
        'if own > 0 &&' \
        remote_workers::a_success_has_at_most_a_thousand_follow_up_jobs_and_a_call_four_thousand
    mutant 'repeated success of a worker that may enqueue no more' internal/broker/remote_workers.rs \
        'Err(_) if !is_open => Vec::new(),' \
        'Err(_) if !is_open && settlement.number == 0 => Vec::new(),' \
        remote_workers::jobs_that_follow_need_a_key_that_may_enqueue_each_of_them
    mutant 'missing right to what follows the success of a worker' internal/broker/remote_workers.rs \
        'let jobs = if finish.refused.is_empty() {' \
        'let jobs = if finish.refused.len() < 9 {' \
        remote_workers::jobs_that_follow_need_a_key_that_may_enqueue_each_of_them
    mutant 'repeated later finish that may enqueue no more' internal/broker/deferred.rs \
        'Err(_) if !attempt.open => Vec::new(),' \
        'Err(_) if !attempt.open && attempt.number == 0 => Vec::new(),' \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'missing right to what follows a later finish' internal/broker/deferred.rs \
        'let jobs = if refused.is_empty() {' \
        'let jobs = if refused.len() < 9 {' \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'open API that has ended before the body has come' internal/api/http/follow_ups.rs \
        'is_open.then(||' \
        '(is_open || api.loopback).then(||' \
        deferred::jobs_follow_a_finish_that_comes_later_once_and_need_an_api_key
    mutant 'answer of a repeated verdict when the job has ended' internal/store/attempts/settle.rs \
        'WHERE l.job_id = w.id ORDER' 'WHERE l.job_id = NULL ORDER' \
        remote_workers::a_repeated_verdict_has_its_answer_also_when_the_job_was_cancelled_meanwhile
    mutant 'jobs of locked keys without Redis at remote workers' internal/engine/remote_workers.rs \
        'if self.shared.store.knows_locked_keys() {' \
        'if self.shared.store.knows_locked_keys() && false {' \
        remote_workers::while_redis_is_out_the_jobs_of_a_locked_key_hold_up_no_job_of_a_worker_behind_them
    mutant 'wait for a key of a limit with a queue locked' internal/store/attempts/limited.rs \
        'let others = not_among(keys, &got);' \
        'lock_keys(conn, keys).await?; let others = not_among(keys, &got);' \
        remote_workers::a_claim_of_a_worker_that_waits_for_a_key_of_a_limit_keeps_no_queue_locked \
        remote_workers::many_locked_keys_of_a_limit_hold_up_no_other_key_of_workers_in_a_limited_queue
    mutant 'row of a key that counts as locked' internal/store/attempts/limited.rs \
        '!without_rows(conn, keys, &got).await?.is_empty()' \
        '!without_rows(conn, keys, &got).await?.is_empty() && false' \
        remote_workers::a_key_that_another_session_has_not_made_after_all_holds_up_no_job_of_a_worker_in_a_limited_queue
    mutant 'jobs hidden before their worker came' internal/engine/remote_workers.rs \
        'KIND_NEW_FOR: Duration = Duration::from_secs(6)' 'KIND_NEW_FOR: Duration = Duration::from_secs(0)' \
        remote_workers::a_job_that_waited_for_a_worker_of_its_kind_starts_when_the_worker_asks
    mutant 'audit of a replacement' internal/store/jobs/unique_keys.rs \
        'record_all(conn, &acts, now).await' \
        'record_all(conn, &[], now).await' \
        security::a_unique_key_shows_and_replaces_only_what_its_own_producer_made
    mutant 'refusal to pause a queue that is not there' cmd/tickr/queues.rs \
        '&& !matches.get_flag("create") {' \
        '&& name.is_empty() {' \
        cli::a_queue_that_was_never_used_is_not_paused_by_a_slip_of_the_finger
    mutant 'warning of a queue that no runner serves' internal/api/jobs/warnings.rs \
        '.and_then(|served| unserved(served, job))' \
        '.and_then(|served| unserved(served, job)).filter(|_| false)' \
        problems::a_job_that_nothing_would_run_is_accepted_with_a_warning
    mutant 'jobs that a dry run leaves out' internal/api/bulk.rs \
        '.is_none().then(|| state.to_string()),' \
        '.is_none().then(|| state.to_string()).filter(String::is_empty),' \
        operations::a_dry_run_tells_what_would_change_from_what_would_be_left_and_why
    mutant 'replayed jobs that a dry run leaves out' internal/api/bulk.rs \
        '(Action::Retry, Replayed::Yes) =>' \
        '(Action::Delete, Replayed::Yes) =>' \
        operations::a_dry_run_tells_what_would_change_from_what_would_be_left_and_why
    mutant 'addresses that an operator allows' internal/handlers/http/guard.rs \
        'any(&|entry| entry.has_address(address)) || named()' \
        'named()' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'addresses beside those that an operator allows' internal/handlers/http/guard.rs \
        'any(&|entry| entry.has_address(address)) || named()' \
        '!self.allowed.is_empty() || named()' \
        callbacks::a_refused_target_names_the_setting_and_what_the_setting_names_is_reached
    mutant 'URL of alerts at the start' internal/app/mod.rs \
        'problem_of(&alerts.url).await' \
        'problem_of(&alerts.url).await.filter(|_| false)' \
        internal/app/kinds.rs 'calls.problem_of_text(&alerts.url))' 'calls.problem_of_text(&alerts.url)).filter(|_| false)' \
        callbacks::a_useless_url_of_alerts_is_refused_at_the_start_with_the_reason
    mutant 'attempts to deliver an alert' internal/engine/alerts.rs \
        'max_attempts: Some(limits::MAX_ATTEMPTS),' \
        'max_attempts: Some(limits::MAX_ATTEMPTS).filter(|_| false),' \
        dead_letters::an_outage_of_the_receiver_delays_an_alert_and_does_not_lose_it
    mutant 'alert that was not delivered' internal/job/alert.rs \
        'last.undelivered_for.is_some_and(' \
        'last.undelivered_for.filter(|_| false).is_some_and(' \
        dead_letters::an_alert_that_its_receiver_refuses_is_sent_again_and_counts_for_no_rule
    mutant 'count without the deliveries of alerts' internal/engine/alerts.rs \
        'filter(|count| !count.of_alerts)' \
        'filter(|count| !count.of_alerts || count.open > 0)' \
        dead_letters::an_alert_that_its_receiver_refuses_is_sent_again_and_counts_for_no_rule
    mutant 'dead letter of an alert that was sent again' internal/store/alerts.rs \
        'if !failed.is_empty() {' \
        'if failed.len() > 99 {' \
        dead_letters::an_alert_that_its_receiver_refuses_is_sent_again_and_counts_for_no_rule
    mutant 'order of the messages of an alert' internal/engine/alerts.rs \
        'order_key: Some(format!("alert:{}", rule.name())),' \
        'order_key: Some(format!("alert:{}:{told:?}", rule.name())),' \
        dead_letters::resolved_does_not_overtake_the_alert_before_it_at_its_receiver
    mutant 'rules behind an alert that cannot be written' internal/engine/alerts.rs \
        'Err(error) => failed = Some(error),' \
        'Err(error) => return Err(failed.unwrap_or(error)),' \
        dead_letters::an_alert_that_cannot_be_written_does_not_hold_up_other_rules
    mutant 'warning of dead letters that are not counted' internal/engine/alerts.rs \
        'tracing::warn!(%error, "cannot count' \
        'tracing::debug!(%error, "cannot count' \
        dead_letters::a_count_of_dead_letters_that_mysql_refuses_is_said_in_the_log
    mutant 'question to MySQL beside long counts' internal/api/system/metrics.rs \
        'self.end(|last| &mut last.mysql, began + rest);' \
        'self.end(|last| &mut last.mysql, began + rest.max(LONGEST));' \
        metrics::a_server_that_stops_after_a_long_count_is_told_before_the_next_count \
        metrics::a_mysql_that_stops_amid_the_counts_is_told_before_they_all_time_out
    mutant 'runners of the metrics before the counts' internal/api/system/metrics.rs \
        'set_runners(runners);' \
        'let _ = (set_runners, runners);' \
        metrics::a_server_that_stops_after_a_long_count_is_told_before_the_next_count
    mutant 'runners without workers' internal/store/runners.rs \
        'AND r.slots > 0' \
        'AND r.slots >= 0' \
        metrics::processes_without_workers_are_not_counted_among_runners_with_workers
    mutant 'URL of alerts in debug output' internal/config/alerts.rs \
        '.field("url", &masked(url))' \
        '.field("url", url)' \
        security::debug_of_the_configuration_shows_no_secret_in_the_url_of_a_receiver
    mutant 'URL of delayed messages in debug output' internal/config/compat.rs \
        '.field("url", &masked(url))' \
        '.field("url", url)' \
        security::debug_of_the_configuration_shows_no_secret_in_the_url_of_a_receiver
    mutant 'warning of callbacks without a signature' internal/app/run.rs \
        '([], []) => tracing::warn!(' \
        '([], []) => tracing::debug!(' \
        callbacks::a_start_without_a_callback_secret_says_so_once
    mutant 'output of a quiet enqueue' cmd/tickr/enqueue.rs \
        '} else if !quiet {' \
        '} else {' \
        cli::the_exit_code_of_an_enqueue_that_waits_says_how_the_job_ended
    mutant 'query of a URL in errors' internal/handlers/http/exchange.rs \
        'printable(place(url).as_bytes(), ENDPOINT_BYTES)' \
        'printable(url.as_str().as_bytes(), ENDPOINT_BYTES)' \
        callbacks::errors_tell_the_endpoints_of_a_receiver_apart_and_say_nothing_of_a_query
    mutant 'path of a URL in errors' internal/handlers/http/exchange.rs \
        'printable(place(url).as_bytes(), ENDPOINT_BYTES)' \
        'printable(url.origin().ascii_serialization().as_bytes(), ENDPOINT_BYTES)' \
        callbacks::errors_tell_the_endpoints_of_a_receiver_apart_and_say_nothing_of_a_query
    mutant 'warning of MySQL without a checked certificate' internal/config/load.rs \
        'if url.is_unverified() {' \
        'if url.is_unverified() && setting.is_empty() {' \
        security::a_start_warns_of_mysql_on_other_machines_whose_certificate_is_not_checked
    mutant 'setting for the longest callback' internal/app/kinds.rs \
        'longest: config.callback_timeout,' \
        'longest: config.callback_timeout.min(std::time::Duration::from_secs(30)),' \
        callbacks::a_callback_may_wait_as_long_as_the_setting_says_and_no_longer
    mutant 'lost attempts before the first one' internal/engine/attempt_metrics.rs \
        'ended(kind, Verdict::Lost).increment(0);' \
        'let _ = Verdict::Lost;' \
        metrics::counters_that_alerts_watch_begin_at_zero_with_the_process
    mutant 'ticks before the first one' internal/broker/lib.rs \
        'schedules::begin_counting();' \
        'let _ = schedules::begin_counting;' \
        metrics::counters_that_alerts_watch_begin_at_zero_with_the_process
    mutant 'parameters of a MySQL URL' internal/config/url.rs \
        'parts.check_mysql_parameters()?;' \
        'let _ = parts.check_mysql_parameters();' \
        cli::serve_names_everything_that_is_wrong_with_its_settings_at_once
    mutant 'files of a MySQL URL at the start' internal/app/mod.rs \
        'mistakes.extend(unreadable("mysql_url", config.mysql_url.as_ref()));' \
        'let _ = ServerUrl::tls_files;' \
        cli::serve_names_the_files_urls_and_kinds_that_it_cannot_use_at_once_and_without_mysql
    mutant 'character set and time zone of a MySQL URL' internal/store/sql/connection.rs \
        '.timezone(Some("+00:00".to_owned())).charset("utf8mb4")' \
        '' \
        mysql_faults::a_charset_and_a_time_zone_of_the_mysql_url_change_no_text_and_no_time
    mutant 'collation of another character set' internal/config/load.rs \
        'setting != "reports.mysql_url" && url.has_foreign_collation()' \
        'setting.is_empty() && url.has_foreign_collation()' \
        cli::a_part_of_a_url_that_would_have_no_effect_is_a_wrong_configuration
    mutant 'parameters of a Redis URL' internal/config/url.rs \
        '_ => Err(UrlError::UnknownParameter),' \
        '_ => Ok(()),' \
        cli::a_part_of_a_url_that_would_have_no_effect_is_a_wrong_configuration
    mutant 'user of Redis without a password' internal/config/url.rs \
        'Some((user, "")) if !user.is_empty() => Err(UrlError::UserWithoutPassword),' \
        'Some((user, "")) if user == "/" => Err(UrlError::UserWithoutPassword),' \
        cli::a_part_of_a_url_that_would_have_no_effect_is_a_wrong_configuration
    mutant 'files of a MySQL URL without a certificate' internal/app/mod.rs \
        '.and_then(|pem| check_pem(parameter, &pem))' \
        '.map(|_| check_pem)' \
        cli::a_file_of_a_mysql_url_without_a_certificate_or_key_is_a_wrong_configuration
    mutant 'alerts for unknown kinds' internal/app/mod.rs \
        'kinds::warn_of_unknown_alerts(config, &registry);' \
        'let _ = kinds::warn_of_unknown_alerts;' \
        cli::a_start_warns_of_alerts_for_kinds_that_it_does_not_know
    mutant 'flags of servers for dev' cmd/tickr/dev.rs \
        'Subset::AllBut(&OF_OTHER_SERVERS)' \
        'Subset::AllBut(&OF_OTHER_SERVERS[..0])' \
        cli::dev_refuses_the_flags_of_servers_that_it_would_not_use
    mutant 'address that a container listens on' cmd/tickr/health.rs \
        '.and_then(|addr| beside(&addr))' \
        '.and_then(|_| beside(""))' \
        cli::health_without_a_url_asks_the_address_that_its_container_listens_on
    mutant 'signal while nothing reads the output' cmd/tickr/stream.rs \
        'std::process::exit(exit_code(signal).into());' \
        'let _ = exit_code(signal);' \
        cli_faults::a_command_that_follows_ends_by_a_signal_also_while_its_output_is_not_read \
        cli_faults::top_ends_by_a_signal_also_while_its_terminal_is_not_read
    mutant 'lost token of an API key' cmd/tickr/api_keys.rs \
        'if let Err(error) = printed {' \
        'if let Some(error) = printed.err().filter(|_| made.is_null()) {' \
        cli_faults::an_api_key_whose_token_cannot_be_printed_is_named_to_be_revoked
    mutant 'limit of the first try of an enqueue' cmd/tickr/client.rs \
        'let first = if is_timeout(&error) { began } else { Instant::now() };' \
        'let first = Instant::now().max(began);' \
        cli_faults::an_enqueue_gives_up_in_time_at_a_server_that_takes_requests_and_says_nothing
    mutant 'limit of the wait of an enqueue' cmd/tickr/enqueue.rs \
        'let longest = end.saturating_duration_since(Instant::now()) + LAST_CALL;' \
        'let longest = LAST_CALL * 18;' \
        cli_faults::an_enqueue_gives_up_in_time_at_a_server_that_takes_requests_and_says_nothing
    mutant 'plus sign of counts that are lower bounds' cmd/tickr/queues.rs \
        'if is_floor { "+" } else { "" }' 'if is_floor { "" } else { "" }' \
        cli_faults::counts_of_a_queue_that_are_lower_bounds_are_printed_with_a_plus_sign
    mutant 'pause of a queue while reads are busy' cmd/tickr/queues.rs \
        'if client::is_not_found(error))' 'if client::is_not_found(error) || path.len() > 1)' \
        cli_faults::an_emergency_pause_is_not_held_up_by_a_server_whose_reads_are_busy
    mutant 'queues of drained runners' internal/api/queues.rs \
        'runner.stopped_at.is_none() && runner.parent.is_none()' 'runner.takes_jobs()' \
        queues::what_is_set_about_a_queue_is_checked_versioned_and_shown
    mutant 'changes whose answer is one of a proxy' cmd/tickr/client.rs \
        'refusal.leaves_open() && refusal.code != "stopping"' \
        'refusal.leaves_open() && refusal.status.is_success()' \
        cli_faults::a_change_whose_answer_is_lost_is_told_as_one_that_may_have_been_made
    mutant 'API key whose answer is one of a proxy' cmd/tickr/client.rs \
        'is_lost || error.downcast_ref::<Refusal>().is_some_and(Refusal::leaves_open)' 'is_lost' \
        cli_faults::a_change_whose_answer_is_lost_is_told_as_one_that_may_have_been_made
    mutant 'API key without a token' cmd/tickr/api_keys.rs \
        'if text(&made, "token").is_empty() {' 'if text(&made, "token").len() == usize::MAX {' \
        cli_faults::a_change_whose_answer_is_lost_is_told_as_one_that_may_have_been_made
    mutant 'answers that a proxy cut' cmd/tickr/client.rs \
        'self.status.is_success()' 'self.status.is_success() && !self.code.is_empty()' \
        cli_faults::an_answer_that_a_proxy_cut_or_emptied_counts_as_lost
    mutant 'answers that a proxy emptied' cmd/tickr/client.rs \
        'if !answer.is_null() {' 'if !answer.is_null() || self.url.len() > 1 {' \
        cli_faults::an_answer_that_a_proxy_cut_or_emptied_counts_as_lost
    mutant 'revocation that a proxy emptied' cmd/tickr/client.rs \
        'self.change(self.http.delete(self.address(path)?), false).await' \
        'self.change_silently(self.http.delete(self.address(path)?)).await' \
        cli_faults::an_answer_that_a_proxy_cut_or_emptied_counts_as_lost
    mutant 'enqueue whose answer has no id' cmd/tickr/enqueue.rs \
        'id_of(&job).map_err(|error| ending::perhaps(&key, error))?' 'id_of(&job)?' \
        cli_faults::a_redirect_is_refused_with_its_target_and_turns_no_enqueue_into_a_read
    mutant 'state that an enqueue does not know' cmd/tickr/enqueue.rs \
        'Failure { code: 1, error: Some(error) } =>' 'Failure { code: 0, error: Some(error) } =>' \
        cli_faults::an_enqueue_that_waits_outlives_refusals_and_never_calls_an_accepted_job_not_enqueued
    mutant 'patience of the first read of a bulk operation' cmd/tickr/operations.rs \
        'client.get_until(&path, Instant::now() + patience, say)' \
        'client.get_until(&path, Instant::now() + patience * 0, say)' \
        cli_faults::a_bulk_operation_is_followed_also_when_its_server_restarts_right_after_the_start
    mutant 'ids that lead to another path' cmd/tickr/client.rs \
        'matches!(part, "" | "." | ".." | "%2E" | "%2E%2E")' 'matches!(part, "/")' \
        cli::a_value_that_a_flag_cannot_have_is_wrong_usage_before_any_request
    mutant 'URL of the server in the help' cmd/tickr/client.rs \
        'with which every command refuses it.
                .hide_env_values(true)' \
        'with which every command refuses it.
                .hide_env_values(false)' \
        cli::a_url_or_token_that_no_server_can_have_is_wrong_usage
    mutant 'API key of a body that is under way' internal/api/http/body.rs \
        'Some(mut right) => right.wait_for(read).await,' \
        'Some(right) if !right.is_good() => Err(right.refusal()),
            Some(_) => Ok(read.await),' \
        security::a_request_whose_body_is_under_way_does_nothing_after_its_key_has_ended
    mutant 'finish key before the body' internal/api/attempts.rs \
        'deferred_attempt(digest).await?.map(|_| digest))' \
        'deferred_attempt(digest).await?.map_or(Some(digest), |_| Some(digest)))' \
        security::a_finish_key_that_no_attempt_has_is_refused_before_its_body_is_read
    mutant 'time of a line of an import' internal/api/jobs/import.rs \
        '*deadline.get_or_insert_with(|| Instant::now() + self.patience)' \
        '*deadline.insert(Instant::now() + self.patience)' \
        import::what_was_sent_is_answered_before_the_rest_and_a_sender_that_falls_silent_is_told
    mutant 'addresses other than loopback at an open API' internal/api/http/origin.rs \
        'address.to_canonical().is_loopback() ||' '!address.is_unspecified() || address.is_unspecified() ||' \
        security::an_open_api_refuses_pages_of_other_sites_proxies_and_hosts_that_cannot_be_read
    mutant 'hangup under nohup' internal/app/signals.rs \
        'let hangup = (!is_hangup_ignored()).then_some(SIGHUP);' \
        'let hangup = is_hangup_ignored().then_some(SIGHUP).or(Some(SIGHUP));' \
        cli::a_runner_under_nohup_outlives_its_terminal
    mutant 'loops of a held process' internal/engine/lib.rs \
        '        if settings.held {
            return Ok(Self::hold(' \
        '        if settings.held && settings.workers > 4_096 {
            return Ok(Self::hold(' \
        held::a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it
    mutant 'workers of a held process' internal/api/workers.rs \
        '    if !api.held {
        return Ok(());' \
        '    if !api.held || api.held {
        return Ok(());' \
        held::a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it
    mutant 'bulk operations of a held process' internal/api/bulk.rs \
        'if api.held {' 'if api.held && !api.held {' \
        held::a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it
    mutant 'history of a held process' internal/engine/recorder.rs \
        'if !held {' 'if !held || held {' \
        internal/engine/recorder.rs 'FIRST_PURGE.mul_f64(rand::random())' 'Duration::from_secs(1)' \
        internal/engine/recorder.rs 'PURGE_EVERY.mul_f64(0.5 + rand::random::<f64>())' 'Duration::from_secs(1)' \
        held::a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it
    mutant 'restored database beside an empty Redis' internal/verify/drift.rs \
        'if !settings.repair && store.runner_counts().await?.alive == 0 {' \
        'if !settings.repair && store.runner_counts().await?.alive == u64::MAX {' \
        held::a_restored_backup_starts_nothing_while_held_and_all_that_it_owes_after_it
    mutant 'hangup under a supervisor' internal/app/signals.rs \
        'Some(SIGHUP) if self.hangup_reloads =>' \
        'Some(SIGHUP) if self.hangup_reloads && is_hangup_ignored() =>' \
        supervisor::a_reload_follows_the_log_filter_names_what_needs_a_restart_and_refuses_a_wrong_file_whole
    mutant 'end of a reload' internal/app/mod.rs \
        '                    reload.carry_out();
                    supervisor.say_ready(self.addr);' \
        '                    reload.carry_out();' \
        supervisor::a_reload_follows_the_log_filter_names_what_needs_a_restart_and_refuses_a_wrong_file_whole
    mutant 'changed secrets in a reload' internal/config/origin.rs \
        '            given.hash(&mut hasher);
' \
        '            effective.value.hash(&mut hasher);
' \
        supervisor::a_reload_follows_the_log_filter_names_what_needs_a_restart_and_refuses_a_wrong_file_whole
}

# mutant NAME FILES OLD NEW [FILES OLD NEW ...] TESTS
# With more than one cut, all of them are taken out together, because each of them makes up for the others. Every test
# must turn red.
mutant() {
    wanted "$1" || return 0
    ran=$((ran + 1))
    next=$1 cut_files='' problem=''
    shift
    while case $1 in internal/* | cmd/* | tools/*) ;; *) false ;; esac; do
        cut "$1" "$2" "$3" || problem="**does not say** \`$2\`"
        shift 3
    done
    if [ "$lane" = a ]; then lane=b; else lane=a; fi
    if [ -z "$problem" ] && ! build "$@"; then
        problem='**does not build**'
        cat "$copy/logs/build" >&2
    fi
    restore
    judge
    name=$next files=$cut_files tests=$* count=$#
    log=$copy/logs/$(echo "$name" | tr -c 'a-z0-9\n' -)
    if [ -n "$problem" ]; then
        tell "$problem"
    else
        # The alarm kills a test that hangs.
        # Without CARGO the suite takes the examples that were built with the safeguard taken out.
        env -u CARGO perl -e 'alarm shift; exec @ARGV' "$patience" "$suite" --exact "$@" >"$log" 2>&1 &
        running=$!
    fi
}

wanted() {
    if [ -n "$from" ]; then
        [ "$1" = "$from" ] || return 1
        from=''
    fi
    if [ -n "$exact" ]; then [ "$1" = "$only" ]; else case $1 in *"$only"*) ;; *) return 1 ;; esac fi
}

cut() {
    for file in $1; do
        if [ ! -e "$copy/whole/$file" ]; then
            mkdir -p "$(dirname "$copy/whole/$file")"
            cp "$file" "$copy/whole/$file"
            cut_files="$cut_files $file"
        fi
        OLD=$2 NEW=$3 perl -0777 -pi -e '$n = s/\Q$ENV{OLD}\E/$ENV{NEW}/g; die "$ARGV does not say $ENV{OLD}\n" unless $n' "$file" ||
            return 1
    done
}

restore() {
    for file in $cut_files; do
        mv "$copy/whole/$file" "$file"
        # The source must be newer than the build of the mutant, so that cargo builds it again.
        touch "$file"
    done
}

# build TESTS: build the program of the tests, the binary that it runs, and the examples if these tests start some.
build() {
    CARGO_TARGET_DIR=$copy/$lane CARGO_PROFILE_DEV_DEBUG=0 CARGO_TERM_COLOR=never \
        cargo test --no-run --test suite >"$copy/logs/build" 2>&1 || return 1
    case $* in *rollout::* | *examples::* | *embedding* | *a_binary_with_kinds_of_its_own* | \
        *panics::a_check_that_panics* | *metrics::samples_take_no_memory* | *leases::handlers_that_block*)
        CARGO_TARGET_DIR=$copy/$lane CARGO_PROFILE_DEV_DEBUG=0 CARGO_TERM_COLOR=never \
            cargo build --examples >>"$copy/logs/build" 2>&1 || return 1
        ;;
    esac
    suite=$(sed -n 's/^ *Executable .*(\(.*\))$/\1/p' "$copy/logs/build")
}

# Wait for the running test, and print its row of the table.
judge() {
    [ -n "$running" ] || return 0
    if wait "$running"; then
        verdict="**nothing**, not even $tests"
    elif grep -q "0 passed; $count failed" "$log"; then
        verdict=$(printf '`%s` ' $tests)
    elif grep -q '[1-9][0-9]* passed; [1-9][0-9]* failed' "$log"; then
        verdict="**not all of** $tests"
    else
        verdict="**no verdict of** $tests"
    fi
    running=''
    tell "${verdict% }"
}

tell() {
    line="| $name |$(echo "$files" | sed 's/ internal\// /g') | $1 |"
    echo "$line"
    case $1 in '**'*) failures="$failures$line
" ;; esac
}

main "$@"
