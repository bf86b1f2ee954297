//! Jobs whose last two runners seem to have died while executing them.

use sqlx::MySqlConnection;
use tickr::job::JobId;
use tickr::store::SUSPECT_FROM;

/// Make the tables say that these waiting jobs lost two attempts in a row. They are not due yet.
pub(crate) async fn make_suspects(mysql: &mut MySqlConnection, ids: &[JobId]) {
    for id in ids {
        let sql = "UPDATE owed SET losses = ?, attempt = ?, state = 'retrying' WHERE id = ?";
        let query = sqlx::query(sql).bind(SUSPECT_FROM).bind(SUSPECT_FROM).bind(id.uuid());
        query.execute(&mut *mysql).await.unwrap();
        for number in 1..=SUSPECT_FROM {
            let sql = "INSERT INTO attempts (job_id, number, burned, runner, execute_at, started_at, finished_at, verdict, \
                       error) VALUES (?, ?, ?, 'gone/1-abcdef', UTC_TIMESTAMP(3), SYSDATE(6), SYSDATE(6), 'lost', 'gone')";
            let query = sqlx::query(sql).bind(id.uuid()).bind(number).bind(number);
            query.execute(&mut *mysql).await.unwrap();
        }
    }
}
