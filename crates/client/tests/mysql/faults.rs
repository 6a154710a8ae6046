//! What MariaDB may do to those who lock with it.

use std::process::Command;

use tenure_testkit::{Certificates, MariaDb, find_program};

use crate::databases::{Database, ZONE, fault_suite, lines};

fault_suite!(MariaDb);

impl Database for MariaDb {
    type Driver = sqlx::MySql;

    const SESSION: &'static str = "named";
    const HELPER: &'static str = "mysql::contract::table::helper";

    const PAGE: &'static str = include_str!("../../../../docs/engines/mysql.md");

    const DEFAULTS: &'static [&'static str] = &[
        "SET GLOBAL autocommit = 0",
        "SET GLOBAL init_connect = 'SET autocommit = 0'",
        "SET GLOBAL completion_type = 'CHAIN'",
        "SET GLOBAL tx_isolation = 'SERIALIZABLE'",
        "SET GLOBAL sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES'",
        "SET GLOBAL max_statement_time = 1",
    ];

    fn start() -> Self {
        Self::start()
    }

    fn start_small() -> Self {
        Self::builder().arg("--max-connections=20").start()
    }

    fn start_with_clock() -> Self {
        let mariadb = Self::builder().faketime().start();
        let mut zone = Command::new(find_program("mariadb-tzinfo-to-sql").unwrap());
        zone.arg("--skip-write-binlog").arg(format!("/usr/share/zoneinfo/{ZONE}")).arg(ZONE);
        let zone = String::from_utf8(zone.output().unwrap().stdout).unwrap();
        mariadb.sql(&format!("USE mysql; {zone}"));
        mariadb.sql(&format!("SET GLOBAL time_zone = '{ZONE}'"));
        mariadb
    }

    fn start_with_tls(certificates: &Certificates) -> Self {
        Self::builder().tls(certificates).start()
    }

    fn same_table(&self) -> String {
        format!("&table={}.tenure_lock", self.database())
    }

    fn url(&self) -> String {
        self.url()
    }

    fn sql(&self, statement: &str) -> String {
        self.sql(statement)
    }

    fn try_sql(&self, statement: &str) -> Result<String, String> {
        self.try_sql(statement)
    }

    fn clocks_s(&self) -> (i64, i64) {
        let seconds = |of: &str| {
            self.sql(&format!("SELECT TIMESTAMPDIFF(SECOND, '1970-01-01', {of})")).parse().unwrap()
        };
        (seconds("NOW()"), seconds("UTC_TIMESTAMP()"))
    }

    fn connections(&self) -> Vec<String> {
        lines(&self.sql(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = 'tenure' AND ID <> CONNECTION_ID()",
        ))
    }

    fn opened(&self) -> u64 {
        let status = self.sql("SHOW GLOBAL STATUS LIKE 'Connections'");
        status.split_whitespace().last().unwrap().parse().unwrap()
    }

    fn waiting(&self) -> Vec<String> {
        // What they do, and not the views of InnoDB: those are not made anew for whoever looks again and again.
        lines(&self.sql(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE COMMAND IN ('Query', 'Execute') AND ID <> CONNECTION_ID() \
             AND (INFO LIKE '%GET_LOCK(%' OR INFO LIKE '%FOR UPDATE%' OR COMMAND = 'Execute') AND INFO NOT LIKE '%tenure_listener_%' \
             AND INFO NOT LIKE '%@tenure_mark%'",
        ))
    }

    fn waits_for_s(&self, connection: &str) -> Option<u64> {
        self.sql(&format!(
            "SELECT TIME FROM information_schema.PROCESSLIST WHERE ID = {connection} AND COMMAND IN ('Query', 'Execute')"
        ))
        .parse()
        .ok()
    }

    fn ears(&self) -> Vec<String> {
        lines(&self.sql(
            "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() \
             AND (INFO LIKE '%SLEEP(%' OR INFO LIKE '%GET_LOCK(''tenure_listener_%')",
        ))
    }

    fn end(&self, connection: &str) {
        // It may have ended meanwhile.
        let _ = self.try_sql(&format!("KILL {connection}"));
    }

    fn set_read_only(&self, read_only: bool) {
        self.sql(&format!("SET GLOBAL read_only = {read_only}"));
    }

    fn add_user(&mut self, name: &str, password: &str) {
        self.sql(&format!("CREATE USER {name} IDENTIFIED BY '{password}'"));
    }

    fn add_user_with_tls(&mut self, name: &str, shows_certificate: bool) {
        let shows = if shows_certificate { format!("SUBJECT '/CN={name}'") } else { "SSL".to_owned() };
        self.sql(&format!("CREATE USER {name} REQUIRE {shows}"));
    }

    fn let_use_tables(&self, name: &str) {
        self.sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.* TO {name}"));
    }

    fn let_read_tables(&self, name: &str) {
        self.sql(&format!("GRANT SELECT ON tenure.* TO {name}"));
    }

    fn assert_rows_locked(&self, table: &str, rows: usize) {
        self.sql("SET GLOBAL innodb_status_output_locks = ON");
        let status = self.sql("SHOW ENGINE INNODB STATUS").replace("\\n", "\n");
        let of_table = |sort: &str| -> Vec<String> {
            let is_it = |line: &&str| line.starts_with(sort) && line.contains(&format!("`{table}`"));
            status.lines().filter(is_it).map(str::to_owned).collect()
        };
        let (tables, records) = (of_table("TABLE LOCK"), of_table("RECORD LOCKS"));
        assert!(
            tables.len() == rows && tables.iter().all(|lock| lock.ends_with("lock mode IX")),
            "{tables:?}"
        );
        let are_rows = records
            .iter()
            .all(|lock| lock.contains("n bits") && lock.ends_with("lock_mode X locks rec but not gap"));
        assert!(records.len() == rows && are_rows, "{records:?}");
    }
}
