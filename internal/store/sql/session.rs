//! A connection on which the statements of this crate run. It puts the prefix of the tables into each of them, if there
//! is one.

use std::fmt;
use std::ops::{Deref, DerefMut};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlArguments, MySqlQueryResult, MySqlRow, MySqlStatement, MySqlTypeInfo};
use sqlx::{
    AssertSqlSafe, Connection as _, Either, Execute, Executor, MySql, MySqlConnection, SqlSafeStr as _, SqlStr,
};

use crate::sql::table_names::with_prefix;
use tickr_job::TablePrefix;

/// A connection, or the open transaction on it, and the prefix of the tables. Statements run on it as on a connection of
/// the driver.
pub(crate) struct Session<'c> {
    driver: Driver<'c>,
    prefix: TablePrefix,
    /// Statements of this transaction that are sent with its COMMIT.
    with_commit: Vec<String>,
}

enum Driver<'c> {
    Own(Box<MySqlConnection>),
    Borrowed(&'c mut MySqlConnection),
    Transaction(sqlx::Transaction<'c, MySql>),
}

impl Session<'static> {
    /// Take a connection.
    pub(crate) fn new(driver: MySqlConnection, prefix: TablePrefix) -> Self {
        Self { driver: Driver::Own(Box::new(driver)), prefix, with_commit: Vec::new() }
    }

    /// Close the connection in an orderly way.
    pub(crate) async fn close(self) -> Result<(), sqlx::Error> {
        match self.driver {
            Driver::Own(driver) => driver.close().await,
            Driver::Borrowed(_) | Driver::Transaction(_) => Ok(()),
        }
    }
}

impl<'c> Session<'c> {
    /// Borrow a connection.
    pub(crate) fn on(driver: &'c mut MySqlConnection, prefix: TablePrefix) -> Self {
        Self { driver: Driver::Borrowed(driver), prefix, with_commit: Vec::new() }
    }

    /// Return the connection of the driver. Statements on it reach the server unchanged.
    pub(crate) fn driver(&mut self) -> &mut MySqlConnection {
        match &mut self.driver {
            Driver::Own(driver) => driver,
            Driver::Borrowed(driver) => driver,
            Driver::Transaction(driver) => driver,
        }
    }

    /// Begin a transaction. It is rolled back when it is dropped.
    pub(crate) async fn begin(&mut self) -> Result<Transaction<'_>, sqlx::Error> {
        let prefix = self.prefix.clone();
        let driver = Driver::Transaction(self.driver().begin().await?);
        Ok(Transaction(Session { driver, prefix, with_commit: Vec::new() }))
    }

    /// Return whether this is an open transaction, which ends with [`Transaction::commit`].
    pub(crate) const fn is_transaction(&self) -> bool {
        matches!(self.driver, Driver::Transaction(_))
    }

    /// Leave a statement for the COMMIT of this transaction, which sends it in the same request: so its locks are held
    /// for no round trip. A rollback drops it.
    pub(crate) fn leave_for_commit(&mut self, sql: String) {
        debug_assert!(self.is_transaction(), "nothing would send the statement");
        self.with_commit.push(sql);
    }

    /// Return the prefix of the tables.
    pub(crate) fn prefix(&self) -> &TablePrefix {
        &self.prefix
    }
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// An open transaction.
#[derive(Debug)]
pub(crate) struct Transaction<'c>(Session<'c>);

impl<'c> Transaction<'c> {
    /// Commit, after the statements that were left for this moment.
    pub(crate) async fn commit(mut self) -> Result<(), sqlx::Error> {
        let mut last = std::mem::take(&mut self.0.with_commit);
        if !last.is_empty() {
            // MySQL does not go on to the COMMIT when a statement before it fails.
            last.push("COMMIT".to_owned());
            sqlx::raw_sql(AssertSqlSafe(last.join(";"))).execute(&mut self.0).await?;
        }
        match self.0.driver {
            // The driver has to know that the transaction is over. Its COMMIT has no effect if that was the end.
            Driver::Transaction(driver) => driver.commit().await,
            // Nothing makes such a transaction, and nothing may call it committed.
            Driver::Own(_) | Driver::Borrowed(_) => Err(sqlx::Error::BeginFailed),
        }
    }

    pub(crate) async fn rollback(self) -> Result<(), sqlx::Error> {
        match self.0.driver {
            Driver::Transaction(driver) => driver.rollback().await,
            Driver::Own(_) | Driver::Borrowed(_) => Ok(()),
        }
    }
}

impl<'c> Deref for Transaction<'c> {
    type Target = Session<'c>;

    fn deref(&self) -> &Session<'c> {
        &self.0
    }
}

impl<'c> DerefMut for Transaction<'c> {
    fn deref_mut(&mut self) -> &mut Session<'c> {
        &mut self.0
    }
}

impl<'s> Executor<'s> for &'s mut Session<'_> {
    type Database = MySql;

    fn fetch_many<'e, 'q: 'e, E>(
        self,
        query: E,
    ) -> BoxStream<'e, Result<Either<MySqlQueryResult, MySqlRow>, sqlx::Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        if self.prefix.is_empty() {
            return self.driver().fetch_many(query);
        }
        let query = Renamed::new(&self.prefix, query);
        self.driver().fetch_many(query)
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<MySqlRow>, sqlx::Error>>
    where
        's: 'e,
        E: 'q + Execute<'q, MySql>,
    {
        if self.prefix.is_empty() {
            return self.driver().fetch_optional(query);
        }
        let query = Renamed::new(&self.prefix, query);
        self.driver().fetch_optional(query)
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [MySqlTypeInfo],
    ) -> BoxFuture<'e, Result<MySqlStatement, sqlx::Error>>
    where
        's: 'e,
    {
        let sql = renamed(&self.prefix, sql);
        self.driver().prepare_with(sql, parameters)
    }
}

/// A statement with the prefix in its text.
struct Renamed {
    sql: SqlStr,
    arguments: Option<Result<Option<MySqlArguments>, BoxDynError>>,
    is_persistent: bool,
}

impl Renamed {
    fn new<'q, E: Execute<'q, MySql>>(prefix: &TablePrefix, mut query: E) -> Self {
        let arguments = Some(query.take_arguments());
        let is_persistent = query.persistent();
        Self { sql: renamed(prefix, query.sql()), arguments, is_persistent }
    }
}

impl Execute<'_, MySql> for Renamed {
    fn sql(self) -> SqlStr {
        self.sql
    }

    fn statement(&self) -> Option<&MySqlStatement> {
        None
    }

    fn take_arguments(&mut self) -> Result<Option<MySqlArguments>, BoxDynError> {
        self.arguments.take().unwrap_or(Ok(None))
    }

    fn persistent(&self) -> bool {
        self.is_persistent
    }
}

fn renamed(prefix: &TablePrefix, sql: SqlStr) -> SqlStr {
    match with_prefix(prefix, sql.as_str()) {
        std::borrow::Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
        std::borrow::Cow::Borrowed(_) => sql,
    }
}
