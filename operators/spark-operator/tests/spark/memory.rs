//! Memory arithmetic, compared with Spark's.

use std::collections::BTreeMap;

use spark_operator::memory::{Language, Memory, java_double, limit, mebibytes};
use spark_operator::version::SparkVersion;

fn properties(rows: &[(&str, &str)]) -> BTreeMap<String, String> {
    let rows = rows.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    rows.collect()
}

fn driver(rows: &[(&str, &str)], language: Language, version: &str) -> Result<i64, String> {
    let memory = Memory {
        properties: &properties(rows),
        language,
        version: SparkVersion::parse(version),
    };
    memory.driver().map_err(|error| error.to_string())
}

const HEAP: &str = "spark.driver.memory";
const OVERHEAD: &str = "spark.driver.memoryOverhead";
const FACTOR: &str = "spark.driver.memoryOverheadFactor";
const SHARED: &str = "spark.kubernetes.memoryOverheadFactor";
const LEAST: &str = "spark.driver.minMemoryOverhead";

#[test]
fn a_driver_asks_for_heap_and_overhead() {
    use Language::{Jvm, Python, R};
    type Row<'a> = (&'a [(&'a str, &'a str)], Language, &'a str, i64);
    let rows: &[Row<'_>] = &[
        (&[(HEAP, "512m")], Jvm, "4.0.5", 896),
        (&[], Jvm, "4.0.5", 1408),
        (&[(HEAP, "1g")], Python, "4.0.5", 1433),
        (&[(HEAP, "1g")], R, "4.0.5", 1433),
        (&[(HEAP, "1500m")], Python, "4.0.5", 2100),
        (&[(HEAP, "4g"), (FACTOR, "0.3")], Jvm, "4.0.5", 5324),
        (
            &[(HEAP, "4g"), (OVERHEAD, "100m"), (SHARED, "0.5")],
            Jvm,
            "4.0.5",
            4196,
        ),
        (&[(HEAP, "10g"), (SHARED, "0.2")], Jvm, "4.0.5", 12_288),
        (&[(HEAP, "10g"), (SHARED, "0")], Jvm, "4.0.5", 10_624),
        (&[(HEAP, "1g"), (LEAST, "1g")], Jvm, "4.0.5", 2048),
        // The published operator submits with Spark 4, which knows the key, whatever the image runs.
        (&[(HEAP, "1g"), (LEAST, "1g")], Jvm, "3.5.9", 2048),
        (&[(HEAP, "1024"), (OVERHEAD, "1025")], Jvm, "4.0.5", 2049),
        (&[(HEAP, "1024k")], Jvm, "4.0.5", 385),
        (&[(HEAP, "1073741824b")], Jvm, "4.0.5", 1408),
        (&[(HEAP, "2t")], Jvm, "4.0.5", 2_306_867),
        (&[(HEAP, "1GB")], Jvm, "3.5.9", 1408),
        (&[(HEAP, "1Gi")], Jvm, "4.2.1", 1408),
        (&[(HEAP, "1gib")], Jvm, "4.3.0", 1408),
    ];
    for (rows, language, version, expected) in rows {
        assert_eq!(
            driver(rows, *language, version),
            Ok(*expected),
            "{rows:?} {version}"
        );
    }
}

#[test]
fn what_is_no_amount_of_memory_is_refused_with_the_field_and_the_fix() {
    let rows = [
        ("1.5g", "4.0.5", "fractional values are not supported"),
        ("1Gi", "4.1.4", "write 1G"),
        ("1Gi", "3.5.9", "must be a positive number"),
        ("0", "4.0.5", "Driver memory must be a positive number"),
        ("-1g", "4.0.5", "e.g. 512m"),
        ("many", "4.0.5", "e.g. 512m"),
        ("", "4.0.5", "e.g. 512m"),
        ("99999999p", "4.0.5", "more memory than can be counted"),
    ];
    for (text, version, expected) in rows {
        let error = driver(&[(HEAP, text)], Language::Jvm, version).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
        assert!(
            error.starts_with("spec.driver.memory (spark.driver.memory): "),
            "{error}"
        );
    }
    for odd in ["0", "-0.1", "NaN", "inf"] {
        assert!(
            driver(&[(FACTOR, odd)], Language::Jvm, "4.0.5").is_err(),
            "{odd}"
        );
    }
    let error = driver(&[(SHARED, "much")], Language::Jvm, "4.0.5").unwrap_err();
    assert!(error.starts_with("spec.memoryOverheadFactor "), "{error}");
}

#[test]
fn the_driver_s_own_factor_is_not_the_executors() {
    let properties = properties(&[(HEAP, "4g"), (FACTOR, "0.3")]);
    let memory = |language| Memory {
        properties: &properties,
        language,
        version: SparkVersion::parse("4.0.5"),
    };
    assert_eq!(memory(Language::Jvm).shared_factor(), Ok(0.1));
    assert_eq!(memory(Language::Python).shared_factor(), Ok(0.4));
}

#[test]
fn an_executor_also_asks_for_python_and_off_heap_memory() {
    type Row<'a> = (&'a [(&'a str, &'a str)], Language, i64);
    let rows: &[Row<'_>] = &[
        (
            &[
                ("spark.executor.memory", "1g"),
                ("spark.executor.memoryOverhead", "300m"),
                ("spark.memory.offHeap.enabled", "true"),
                ("spark.memory.offHeap.size", "256m"),
            ],
            Language::Jvm,
            1580,
        ),
        // A bare off-heap size is in bytes.
        (
            &[
                ("spark.executor.memory", "1g"),
                ("spark.memory.offHeap.enabled", "true"),
                ("spark.memory.offHeap.size", "268435456"),
            ],
            Language::Jvm,
            1664,
        ),
        (
            &[
                ("spark.executor.memory", "1g"),
                ("spark.memory.offHeap.size", "256m"),
            ],
            Language::Jvm,
            1408,
        ),
        (
            &[
                ("spark.executor.memory", "1g"),
                ("spark.executor.pyspark.memory", "512"),
            ],
            Language::Python,
            1945,
        ),
        (
            &[
                ("spark.executor.memory", "1g"),
                ("spark.executor.pyspark.memory", "512"),
            ],
            Language::Jvm,
            1408,
        ),
        (
            &[
                ("spark.executor.memory", "4g"),
                ("spark.executor.memoryOverheadFactor", "0.5"),
            ],
            Language::Jvm,
            6144,
        ),
        (
            &[("spark.executor.minMemoryOverhead", "1g")],
            Language::Jvm,
            2048,
        ),
    ];
    for (rows, language, expected) in rows {
        let memory = Memory {
            properties: &properties(rows),
            language: *language,
            version: SparkVersion::parse("4.0.5"),
        };
        assert_eq!(memory.executor(), Ok(*expected), "{rows:?}");
    }
}

#[test]
fn a_memory_limit_may_be_written_as_java_or_as_kubernetes_writes_it() {
    for (text, expected) in [
        ("2g", "2Gi"),
        ("2G", "2Gi"),
        ("512mb", "512Mi"),
        ("512M", "512Mi"),
        ("4Gi", "4Gi"),
        ("1.5Gi", "1.5Gi"),
        ("1073741824", "1073741824"),
        ("3TB", "3Ti"),
    ] {
        assert_eq!(limit(text).as_deref(), Ok(expected), "{text}");
    }
    for odd in ["", "much", "1.5gb", "2 g"] {
        assert!(limit(odd).is_err(), "{odd}");
    }
}

#[test]
fn factors_are_written_as_java_writes_them() {
    for (number, expected) in [
        (0.1, "0.1"),
        (0.4, "0.4"),
        (1.0, "1.0"),
        (2.50, "2.5"),
        (0.0001, "1.0E-4"),
        (12_500_000.0, "1.25E7"),
    ] {
        assert_eq!(java_double(number), expected);
    }
}

#[test]
fn a_bare_number_means_mebibytes() {
    let version = SparkVersion::OLDEST;
    assert_eq!(mebibytes("1500", version), Ok(1500));
    assert_eq!(mebibytes(" 1G ", version), Ok(1024));
    assert_eq!(mebibytes("2047k", version), Ok(1));
}
